"""Tiles at fixed positions give a query the same bits in every batch and every chunking."""

from dataclasses import replace

import pytest
import torch

from quire.errors import RefusedError
from quire.layers.linear.row_tiles import same_bits
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire_attention_backends.torch import tiled_batch
from quire_attention_backends.torch.tiled_batch import TILE, check_rows
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend

SIZES = SceneSizes(batch_invariant=True)
BORDERS = (1, 2, TILE - 1, TILE, TILE + 1, 2 * TILE - 1, 2 * TILE, 2 * TILE + 1)


@pytest.fixture(autouse=True, params=[1, pytest.param(2, marks=pytest.mark.slow)])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def scene_of(*lengths, **sizes):
    scene = AttentionScene(TorchSDPABackend, replace(SIZES, **sizes))
    return scene, [scene.add(length) for length in lengths]


def last_row(length, chunks, num_others=0, **sizes):
    """Return the output of the last of `length` tokens."""
    scene, (number,) = scene_of(length, **sizes)
    others = [scene.add(8) for _ in range(num_others)]
    for chunk in chunks[:-1]:
        scene.outputs([(number, chunk)])
    plan = [(other, 1 + other % 3) for other in others]
    plan.insert(num_others // 2, (number, chunks[-1]))
    output, expected = scene.step(plan)[num_others // 2]
    torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)
    return output[-1]


@pytest.mark.parametrize("length", BORDERS)
@pytest.mark.parametrize("bounds", [{}, {"window": 50}, {"chunk": 96}], ids=str)
def test_contexts_around_the_borders_of_tiles(length, bounds):
    alone = last_row(length, [length], **bounds)
    assert same_bits(last_row(length, [1] * length, **bounds), alone)
    assert same_bits(last_row(length, [length], 20, **bounds), alone)
    if length > 1:
        assert same_bits(last_row(length, [length // 2, -(-length // 2)], **bounds), alone)
        assert same_bits(last_row(length, [length - 1, 1], 31, **bounds), alone)


@pytest.mark.parametrize("num_others", [0, 1, 2, 3, 7, 8, 15, 16, 29, 31])
def test_batches_of_many_sizes(num_others):
    assert same_bits(last_row(150, [149, 1], num_others), last_row(150, [150]))


def test_a_long_context_beside_it_adds_nothing():
    scene, (short, long) = scene_of(41, 601)
    scene.step([(short, 40)])
    scene.step([(long, 600)])
    beside = scene.step([(long, 1), (short, 1)])[1][0]
    assert same_bits(beside[0], last_row(41, [40, 1]))


def test_nothing_is_held_from_step_to_step():
    scene, (number,) = scene_of(40)
    scene.step([(number, 30)])
    for _ in range(3):
        scene.step([(number, 1)])
    assert scene.backend._held._held_batch is None


NOISES = {
    "the products beside it": lambda q: len(q) - 1,
    "the rows beside it": lambda q: q.shape[1] - 1,
    "its index": lambda q: torch.arange(q.shape[1]).unsqueeze(1),
}


@pytest.mark.parametrize("noise", NOISES)
def test_a_machine_on_which_the_bits_of_a_row_depend_on_more_is_refused(noise, monkeypatch):
    scene, _ = scene_of(1)
    right = tiled_batch.attend_in_tiles

    def noisy(q, *rest):
        return right(q, *rest) * (1 + 1e-6 * NOISES[noise](q))

    check_rows(scene.backend.shape)
    monkeypatch.setattr(tiled_batch, "attend_in_tiles", noisy)
    with pytest.raises(RefusedError, match=r"attention in float32.*--batch-invariant"):
        TorchSDPABackend(scene.backend.shape)
    TorchSDPABackend(replace(scene.backend.shape, batch_invariant=False))
