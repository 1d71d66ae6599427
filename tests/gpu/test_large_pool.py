"""Blocks beyond element 2**31 of a pool are read and written at the right address.

Block ids times the elements of a page exceed 2**31 here: a kernel with addresses of 32 bits
reads and writes elsewhere. The pool is never filled; only the blocks of the requests, the last
ones, have values.
"""

import pytest
import torch
from gpu_tests import ON_CPU

from quire.plugins.loading import load_plugins
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.cuda.cuda_attention import CudaBackend
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend
from quire_attention_backends.triton.triton_attention import TritonBackend

pytestmark = pytest.mark.skipif(ON_CPU, reason="4.6 GB of GPU memory")

NUM_BLOCKS = 70_000
HEADS = {"num_heads": 16, "num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
BACKENDS = {"triton": TritonBackend, "cuda": CudaBackend, "torch_sdpa": TorchSDPABackend}


class LargeSizes(SceneSizes):
    """A scene of so many blocks as a large GPU has."""

    __slots__ = ()

    @property
    def num_blocks(self):
        return NUM_BLOCKS


def scene_of(name, kv_dtype, rotary):
    """Return a scene whose requests get the last blocks."""
    sizes = LargeSizes(device="cuda", kv_dtype=kv_dtype, rotary=rotary, **HEADS)
    declared = load_plugins().registries.attention_backends.entry(name).capabilities
    assert kv_dtype in declared.kv_dtypes
    scene = AttentionScene(BACKENDS[name], sizes)
    scene._free = list(range(1, NUM_BLOCKS))  # given out from its end
    return scene


@pytest.mark.parametrize("rotary", [None, "normed"])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("name", BACKENDS)
def test_the_last_blocks_of_a_large_pool_serve_as_the_first(name, kv_dtype, rotary):
    if rotary and not BACKENDS[name].fuses_rotary:
        pytest.skip(f"{name} turns no heads")
    scene = scene_of(name, kv_dtype, rotary)
    numbers_of_a_page = 2 * 16 * HEADS["num_kv_heads"] * HEADS["head_dim"]
    assert (NUM_BLOCKS - 100) * numbers_of_a_page > 2**31
    a, b, c = (scene.add(length) for length in (200, 40, 9))
    before = [scene.raw[0].clone(), scene.raw[1:200].clone()]
    limit = 0.1 if rotary else 3e-2
    for plan in (
        [(a, 180), (b, 30)],
        [(a, 1), (b, 1), (c, 5)],
        [(a, 1), (b, 1), (c, 1)],
        [(c, 1), (a, 1)],
    ):
        for out, expected in scene.step(plan, Padding(1, 2)):
            torch.testing.assert_close(out.double(), expected, atol=limit, rtol=0)
    used = {block for request in scene.requests for block in request.block_ids}
    assert min(used) > NUM_BLOCKS - 100
    assert torch.equal(before[1], scene.raw[1:200]), "a write went to a block of another"
