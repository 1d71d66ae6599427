"""Test scene for attention backends: rows are q, k and v, which a backend may also rotate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionLayerParams, RotaryStep
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import (
    RotaryReference,
    first_seen,
    kv_round_trip,
    reference_attention,
)
from quire.testing.kv_backend.kv_backend_scene import POISON, KVBackendScene
from quire.testing.kv_backend.pool_sizes import DTYPES, POOL_TOKENS


class AttentionScene(KVBackendScene):
    """Requests that share a pool, and the attention backend under test.

    Attributes:
        rotary_reference: Norm and rotary embedding that the backend applies to q and k; None if it
            applies none.
    """

    sizes: SceneSizes

    def __init__(self, backend_class: type[AttentionBackend], sizes: SceneSizes) -> None:
        super().__init__(backend_class, sizes)
        self.rotary_reference = self._random_rotary() if sizes.rotary else None
        self._table, self._norm_weight = self._rotary_inputs(self.raw.device)

    def as_read(self, rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return q, k and v in float64, as attention reads them."""
        sizes, (q, k, v) = self.sizes, rows
        if self.rotary_reference is not None:
            q, k = self.rotary_reference.of(q, 0), self.rotary_reference.of(k, sizes.num_heads)
        return (
            q.double(),
            kv_round_trip(k, sizes.kv_dtype, sizes.k_scale),
            kv_round_trip(v, sizes.kv_dtype, sizes.v_scale),
        )

    def reference(self, rows: Sequence[Tensor], params: AttentionLayerParams) -> Tensor:
        """Return attention by its definition: `q`, `[n, H, D]`, over `k` and `v`, `[L, K, D]`."""
        q, k, v = rows
        return reference_attention(q, k, v, params)

    def params_with(self, scale: float) -> AttentionLayerParams:
        """Return the parameters of a layer whose scores have this factor."""
        return replace(self.sizes.params, scale=scale)

    def free_unseen_blocks(self, number: int, *, is_reused: bool = False) -> None:
        """Free the blocks that the next tokens of a request do not see, as its spec does.

        Args:
            number: Index of the request.
            is_reused: Whether the block table keeps their ids, as if other requests owned them now;
                otherwise the table names the null block. Both hold NaN.
        """
        request = self.requests[number]
        num_gone = first_seen(request.num_computed, self.sizes.params) // self.sizes.block_size
        for index in range(num_gone):
            self.raw[request.block_ids[index]] = POISON
            request.block_ids[index] *= is_reused

    def _forward(self, rows: Sequence[Tensor], positions: Tensor, metadata: Any) -> Tensor:
        if self.rotary_reference is None:
            return super()._forward(rows, positions, metadata)
        eps = self.rotary_reference.norm_eps
        rotary = RotaryStep(self._table, positions, self._norm_weight, eps)
        heads = torch.cat(tuple(rows), 1)
        out: Tensor = self.backend.forward_rotary(
            heads, rotary, self.kv_cache, metadata, self.params
        )
        return out

    def _random_rotary(self) -> RotaryReference:
        sizes = self.sizes
        angles = 6.0 * torch.rand(POOL_TOKENS, sizes.head_dim // 2, generator=self._random)
        cos, sin = angles.cos(), angles.sin()
        table = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), 1)
        shape = (sizes.num_heads + sizes.num_kv_heads, sizes.head_dim)
        weight = torch.rand(shape, generator=self._random) + 0.5
        dtype = DTYPES[sizes.dtype]
        return RotaryReference(
            table.to(dtype), weight.to(dtype) if sizes.rotary == "normed" else None
        )

    def _rotary_inputs(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        if self.rotary_reference is None:
            return torch.empty(0, device=device), None
        weight = self.rotary_reference.norm_weight
        return self.rotary_reference.table.to(device), None if weight is None else weight.to(device)
