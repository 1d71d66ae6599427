"""Chunks of prompts at the boundaries of tiles, windows and splits; queries of any strides."""

import pytest
import torch
from filled_scene import filled
from kernel_device import DEVICE

from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.triton.triton_attention import TritonBackend


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize(
    ("num_computed", "window"),
    [
        (62, None),  # the first query is the last but one of a tile, whose last key is hidden
        (130, 70),  # the first tiles are visible to the first queries only
        (180, 70),  # the first 128 tokens, a split, are hidden from the last queries
    ],
)
def test_a_chunk_far_into_its_context(num_computed, window, batch_invariant):
    sizes = SceneSizes(
        num_heads=2,
        num_kv_heads=1,
        window=window,
        batch_invariant=batch_invariant,
        device=DEVICE.type,
    )
    scene, [number] = filled(TritonBackend, sizes, [num_computed], 40)
    for output, expected in scene.step([(number, 33)]):
        torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)


def test_groups_that_do_not_fill_a_block_leave_the_next_blocks_queries_alone():
    """Three heads per group: 21 queries and an unused row."""
    sizes = SceneSizes(num_heads=3, num_kv_heads=1, device=DEVICE.type)
    scene, [number] = filled(TritonBackend, sizes, [5], 50)
    for output, expected in scene.step([(number, 45)]):
        torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)


def test_queries_need_not_be_contiguous():
    scene, (number, other) = filled(TritonBackend, SceneSizes(device=DEVICE.type), [20, 70])
    plan = [(number, 1), (other, 3)]
    layout, (q, k, v) = scene.layout(plan, Padding()), scene.inputs(plan)
    metadata = scene.backend.prepare(layout)
    expected = scene.backend.forward(q, k, v, scene.kv_cache, metadata, scene.sizes.params)
    apart = q.transpose(0, 1).contiguous().transpose(0, 1)
    found = scene.backend.forward(apart, k, v, scene.kv_cache, metadata, scene.sizes.params)
    assert torch.equal(found, expected)
