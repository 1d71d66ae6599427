"""Contract of latent-attention (MLA) backends: every declared capability is tested.

Write a test class for your backend; pytest collects the inherited tests:

    class TestMine(MLABackendContract):
        backend_class = MyBackend
        capabilities = MY_CAPABILITIES

All outputs are compared with a plain float64 reference. KV-cache dtypes other than float32,
bfloat16 and float16, and batch invariance, are not covered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import torch

from quire.interfaces.mla import MLABackend
from quire.testing.kv_backend.kv_backend_cases import KVBackendCases
from quire.testing.kv_backend.kv_backend_contract import KVBackendContract
from quire.testing.kv_backend.pool_sizes import Padding
from quire.testing.mla.mla_scene import MLAScene, MLASizes

ROWS = ((32, 16), (64, 16), (128, 32))  # latent_dim, rope_dim
BLOCK_SIZES = (1, 16, 64)
NUM_HEADS = (1, 4, 20)


class MLABackendContract(KVBackendContract[MLAScene]):
    """Tests that a backend of latent attention must pass.

    Attributes:
        backend_class: Backend under test.
        capabilities: Capabilities that the backend is registered with.
        device: Device of the tests; the backend must declare it.
        num_cases: Largest number of cases of each kind; None for all declared cases.
        rows: Pairs of latent_dim and rope_dim that the backend supports; most tests use the first.
        num_heads: Numbers of query heads to try.
    """

    backend_class: ClassVar[type[MLABackend]]
    scene_class = MLAScene
    rows: ClassVar[Sequence[tuple[int, int]]] = ROWS
    num_heads: ClassVar[Sequence[int]] = NUM_HEADS
    ragged_lengths = (1, 19, 16, 5, 34)
    uneven_lengths = (3, 130, 7, 40, 1)
    chunked_lengths = MappingProxyType({1: 21, 7: 21, 16: 21})
    num_captured_tokens = 24

    def test_it_declares_the_layout(self) -> None:
        """Check that the backend is selected for MLA layers and for no others."""
        layouts = sorted(self.capabilities.layouts)
        assert layouts == ["mla"], (
            f"an MLA backend must declare layouts=['mla'] and no other, got {layouts}"
        )

    def test_a_layer_may_pass_views_of_larger_tensors(self) -> None:
        """Pass non-contiguous inputs: heads first, or latent and rotary key in one tensor."""
        scene = self._scene(self._plain())
        scene.add(9)
        layout, positions = scene.layout([(0, 9)], Padding()), scene.positions([(0, 9)])
        q_latent, q_rope, latent, k_rope = scene.inputs([(0, 9)])
        by_head = q_latent.transpose(0, 1).contiguous().transpose(0, 1)  # [T, H, C]
        joined, dim = torch.cat((latent, k_rope), 1), latent.shape[1]
        views = (by_head, q_rope, joined[:, :dim], joined[:, dim:])
        outputs = scene.finish_step([(0, 9)], scene.attend(layout, views, positions))
        self._check(scene, scene.with_expected([(0, 9)], outputs))

    def _cases(self) -> MLACases:
        return MLACases(self.capabilities, self.device, self.rows, self.num_heads)


@dataclass(frozen=True)
class MLACases(KVBackendCases[MLASizes]):
    """Test cases of one backend.

    Attributes:
        rows: Pairs of latent_dim and rope_dim.
        num_heads: Numbers of query heads.
    """

    rows: Sequence[tuple[int, int]]
    num_heads: Sequence[int]

    def sizes(self) -> Iterator[MLASizes]:
        """Return rows, block sizes and numbers of heads, one after the other."""
        block_sizes = sorted(self.declared.block_sizes or BLOCK_SIZES, key=lambda s: (s != 16, s))
        dtype, kv_dtype = next(iter(self.types()))
        base = MLASizes(
            latent_dim=self.rows[0][0],
            rope_dim=self.rows[0][1],
            block_size=block_sizes[0],
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=self.device,
        )
        yield base
        for latent_dim, rope_dim in self.rows[1:]:
            yield replace(base, latent_dim=latent_dim, rope_dim=rope_dim)
        for block_size in block_sizes[1:]:
            yield replace(base, block_size=block_size)
        for num_heads in self.num_heads:
            if num_heads != base.num_heads:
                yield replace(base, num_heads=num_heads)
