"""Test scene for latent attention: rows are two parts of the query, latent and rotary key."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionQuery
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.interfaces.mla import MLAShape
from quire.testing.kv_backend.kv_backend_scene import KVBackendScene
from quire.testing.kv_backend.pool_sizes import (
    DTYPES,
    PoolSizes,
    pool_query,
    pool_shape,
    spec_class,
)

SCALE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class MLASizes(PoolSizes):
    """Sizes of a scene; its rows are q_latent, q_rope, latent and k_rope."""

    latent_dim: int = 64
    rope_dim: int = 16

    def __str__(self) -> str:
        """Return the name of the sizes in a test id."""
        return f"H{self.num_heads}-C{self.latent_dim}-P{self.rope_dim}-S{self.block_size}"

    @property
    def row_dim(self) -> int:
        """Number of elements of a token's row in the cache, C + P."""
        return self.latent_dim + self.rope_dim

    @property
    def spec(self) -> KVCacheSpec:
        """KV-cache spec that defines the page size."""
        extra = (("latent_dim", self.latent_dim),)
        layer = KVLayer("scene", "mla_attention", 1, self.row_dim, extra)
        return spec_class("mla_attention")(layer, self.block_size, self.kv_dtype)

    @property
    def query(self) -> AttentionQuery:
        """Requirements of the scene on its backend."""
        query = pool_query(self, 1, self.row_dim)
        return replace(query, layout="mla", latent_dim=self.latent_dim)

    @property
    def shape(self) -> MLAShape:
        """Shape that the backend is built for."""
        return MLAShape.of(pool_shape(self, 1, self.row_dim), self.latent_dim, self.rope_dim)

    @property
    def row_shapes(self) -> Sequence[tuple[int, ...]]:
        """Shapes of one token's q_latent, q_rope, latent and k_rope."""
        queries = (self.num_heads, self.latent_dim), (self.num_heads, self.rope_dim)
        return *queries, (self.latent_dim,), (self.rope_dim,)

    @property
    def params(self) -> float:
        """Scale that a layer of this scene passes to `forward`."""
        return SCALE


class MLAScene(KVBackendScene):
    """Requests that share a pool, and the backend of latent attention under test."""

    def as_read(self, rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return a request's rows in float64, as attention reads them."""
        q_latent, q_rope, *stored = rows
        dtype = DTYPES[self.sizes.kv_dtype]
        return q_latent.double(), q_rope.double(), *(row.to(dtype).double() for row in stored)

    def reference(self, rows: Sequence[Tensor], params: float) -> Tensor:
        """Return latent attention by its definition, `[n, H, C]`."""
        q_latent, q_rope, latent, k_rope = rows
        return reference_mla(q_latent, q_rope, latent, k_rope, params)

    def params_with(self, scale: float) -> float:
        """Return the scale itself."""
        return scale


def reference_mla(
    q_latent: Tensor,  # [n, H, C], the last n tokens of the context
    q_rope: Tensor,  # [n, H, P]
    latent: Tensor,  # [L, C]
    k_rope: Tensor,  # [L, P]
    scale: float,
) -> Tensor:  # [n, H, C]
    """Return latent attention by its definition, one head and one query at a time."""
    out = torch.empty_like(q_latent)
    for row, head in itertools.product(range(len(q_latent)), range(q_latent.shape[1])):
        end = len(latent) - len(q_latent) + row + 1
        scores = latent[:end] @ q_latent[row, head] + k_rope[:end] @ q_rope[row, head]
        out[row, head] = (scores * scale).softmax(0) @ latent[:end]
    return out
