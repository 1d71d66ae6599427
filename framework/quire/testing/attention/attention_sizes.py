"""Sizes and features of a test scene for attention backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from quire.interfaces.attention import AttentionLayerParams, AttentionQuery, AttentionShape
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.testing.kv_backend.pool_sizes import (
    TOLERANCES,
    PoolSizes,
    pool_query,
    pool_shape,
    spec_class,
)

SCALE = 0.3
ROTARY_TOLERANCES = {  # one last bit may change a stored value; queries are rounded once more
    "bfloat16": 6e-2,
    "float8_e4m3fn": 0.1,
    "int8": 3e-2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneSizes(PoolSizes):
    """Sizes and features of a scene; its rows are q, k and v."""

    num_kv_heads: int = 2
    head_dim: int = 64
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0
    rotary: str | None = None  # "plain" or "normed": the backend applies the rotary embedding
    batch_invariant: bool = False

    def __str__(self) -> str:
        """Return the name of the sizes in a test id."""
        special = {
            f"window{self.window}": self.window,
            f"chunk{self.chunk}": self.chunk,
            f"cap{self.soft_cap}": self.soft_cap,
            "sinks": self.has_sinks,
            "alibi": self.has_alibi,
            f"{self.rotary}-rotary": self.rotary,
            "invariant": self.batch_invariant,
            self.kv_dtype: self.kv_dtype != self.dtype,
        }
        sizes = f"H{self.num_heads}-K{self.num_kv_heads}-D{self.head_dim}-S{self.block_size}"
        return "-".join([sizes, self.dtype, *(name for name, is_set in special.items() if is_set)])

    @property
    def tolerance(self) -> float:
        """Largest absolute error allowed."""
        types = (self.dtype, self.kv_dtype)
        slack = ROTARY_TOLERANCES if self.rotary else {}
        return max(max(TOLERANCES[name], slack.get(name, 0.0)) for name in types)

    @property
    def spec(self) -> KVCacheSpec:
        """KV-cache spec that defines the page size."""
        layer = KVLayer("scene", "full_attention", self.num_kv_heads, self.head_dim)
        return spec_class("full_attention")(layer, self.block_size, self.kv_dtype)

    @property
    def query(self) -> AttentionQuery:
        """Requirements of the scene on its backend."""
        return replace(
            pool_query(self, self.num_kv_heads, self.head_dim),
            sliding_window=self.window,
            attention_chunk=self.chunk,
            logit_soft_cap=self.soft_cap,
            has_sinks=self.has_sinks,
            has_alibi=self.has_alibi,
            batch_invariant=self.batch_invariant,
        )

    @property
    def shape(self) -> AttentionShape:
        """Shape that the backend is built for."""
        shape = pool_shape(self, self.num_kv_heads, self.head_dim)
        return replace(shape, batch_invariant=self.batch_invariant)

    @property
    def row_shapes(self) -> Sequence[tuple[int, ...]]:
        """Shapes of one token's q, k and v."""
        kv_shape = (self.num_kv_heads, self.head_dim)
        return (self.num_heads, self.head_dim), kv_shape, kv_shape

    @property
    def params(self) -> AttentionLayerParams:
        """Layer parameters that a layer of this scene passes to `forward`."""
        return AttentionLayerParams(
            SCALE,
            self.window,
            self.soft_cap,
            torch.linspace(-1.0, 3.0, self.num_heads).to(self.device) if self.has_sinks else None,
            self.k_scale,
            self.v_scale,
            self.chunk,
            torch.linspace(0.5, 0.02, self.num_heads).to(self.device) if self.has_alibi else None,
        )

    def with_types(self, dtype: str, kv_dtype: str) -> Self:
        """Return the same sizes in other types; a float8 cache applies the layer's scales."""
        return replace(self, dtype=dtype, kv_dtype=kv_dtype, k_scale=0.5, v_scale=2.0)
