"""Sizes of a test scene: the shape of its backend, and the pool of KV blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import torch

from quire.config import PluginSettings
from quire.interfaces.attention import AttentionQuery, AttentionShape
from quire.interfaces.kv_cache import KVCacheSpec
from quire.plugins.loading import load_plugins

POOL_TOKENS = 2048
MAX_TOKENS = 640  # in one step
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCES = {
    "float32": 2e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float8_e4m3fn": 2e-5,  # the stored values are defined bit for bit
    "int8": 1e-4,  # as well, but a division may round differently
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes(ABC):
    """Sizes that the scenes of all kits have."""

    num_heads: int = 4
    block_size: int = 16
    dtype: str = "float32"
    kv_dtype: str = "float32"
    device: str = "cpu"
    num_padding_rows: int = 0  # between pages, each of one row of the spec

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the pool."""
        return 48 + POOL_TOKENS // self.block_size

    @property
    def tolerance(self) -> float:
        """Largest absolute error allowed."""
        return max(TOLERANCES[self.dtype], TOLERANCES[self.kv_dtype])

    @property
    def page_distance(self) -> int:
        """Number of bytes from page to page."""
        return self.spec.page_bytes + self.num_padding_rows * self.spec.row_bytes

    @property
    @abstractmethod
    def spec(self) -> KVCacheSpec:
        """KV-cache spec that defines the page size."""

    @property
    @abstractmethod
    def query(self) -> AttentionQuery:
        """Requirements of the scene on its backend."""

    @property
    @abstractmethod
    def shape(self) -> AttentionShape:
        """Shape that the backend is built for."""

    @property
    @abstractmethod
    def row_shapes(self) -> Sequence[tuple[int, ...]]:
        """Shapes of one token's rows in the tensors that a layer passes to `forward`, in order.

        The last two are stored in the cache; those before them are queries.
        """

    @property
    @abstractmethod
    def params(self) -> Any:
        """Parameters of the layer, the last argument of `forward`."""

    def with_types(self, dtype: str, kv_dtype: str) -> Self:
        """Return the same sizes in other types."""
        return replace(self, dtype=dtype, kv_dtype=kv_dtype)


def pool_query(sizes: PoolSizes, num_kv_heads: int, head_dim: int) -> AttentionQuery:
    """Return the requirements that all kits share."""
    return AttentionQuery(
        device=sizes.device,
        dtype=sizes.dtype,
        kv_dtype=sizes.kv_dtype,
        num_heads=sizes.num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=sizes.block_size,
    )


def pool_shape(sizes: PoolSizes, num_kv_heads: int, head_dim: int) -> AttentionShape:
    """Return the shape of a backend, without what only one kit has."""
    return AttentionShape(
        num_heads=sizes.num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=sizes.block_size,
        max_num_seqs=32,
        max_num_batched_tokens=MAX_TOKENS,
        max_blocks_per_request=sizes.num_blocks,
        dtype=DTYPES[sizes.dtype],
        kv_dtype=sizes.kv_dtype,
        device=torch.device(sizes.device),
        page_bytes=sizes.page_distance if sizes.num_padding_rows else None,
    )


@cache
def spec_class(name: str) -> type[KVCacheSpec]:
    """Return one of quire's own KV-cache specs."""
    own_only = PluginSettings(disable_plugin_autoload=True)
    return load_plugins(own_only).registries.kv_cache_specs.get(name)


@dataclass(frozen=True, slots=True)
class Padding:
    """Number of padding rows behind the real rows of a step."""

    num_requests: int = 0
    num_tokens: int = 0
