"""The interface of a KV-cache spec: how one kind of layer uses KV blocks.

A spec is arithmetic. It has no torch and no state, so the engine can plan with it and `quire
explain` can print the plan before anything is loaded. A spec describes *one layer*; layers whose
specs are equal form a KV group, and a request has one block table a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer of a model that keeps something in the cache.

    Attributes:
        name: Module path of the attention layer, as in `model.named_modules()`.
        spec: Name of its KV-cache spec in the registry.
        num_kv_heads: Key/value heads of the whole model, before tensor parallelism.
        head_dim: Numbers per head.
        params: What the spec needs besides (a window, a state's shape); hashable pairs.
    """

    name: str
    spec: str
    num_kv_heads: int
    head_dim: int
    params: tuple[tuple[str, Any], ...] = ()


class KVCacheSpec(ABC):
    """How one layer uses KV blocks. Pure; equal specs share a KV group.

    Args:
        layer: The layer, as the model describes it.
        block_size: Tokens a block.
        kv_dtype: Element type of the cache, a key of `DTYPE_BYTES`.
        tp_size: Devices that share each layer.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        self.layer = layer
        self.block_size = block_size
        self.kv_dtype = kv_dtype
        self.tp_size = tp_size

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for layers that can share a block table."""
        layer = self.layer
        shape = (layer.num_kv_heads, layer.head_dim)
        return (type(self), self.block_size, self.kv_dtype, shape, layer.params)

    @property
    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes of one block of one layer on one device."""

    @abstractmethod
    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the length of the block table of a request with so many tokens.

        Args:
            num_tokens: Tokens whose KV is stored, those of the coming step included.
            num_lookahead_tokens: Slots kept ready beyond them for speculation.
        """

    @abstractmethod
    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return how many blocks a request of so many tokens holds at the same time, at most."""

    @abstractmethod
    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return the table indices that no later token will read."""

    @abstractmethod
    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the length, in blocks, of the longest usable prefix hit.

        Args:
            is_cached: For each full block of the prompt, whether the cache holds it.
        """

    def snapshot_blocks(self, num_computed_tokens: int) -> range:
        """Return the table indices at whose end a recurrent state must be kept; none for KV."""
        del num_computed_tokens
        return range(0)


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table, because their specs are equal."""

    spec: KVCacheSpec
    layer_names: tuple[str, ...]
    backend: str = ""  # attention backend that serves the group; "" until composed


@dataclass(frozen=True, slots=True)
class KVTensor:
    """One allocation of raw bytes, shared by one layer of each group (or by a single layer)."""

    num_bytes: int
    layer_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KVPlan:
    """The memory of the whole cache on one device.

    Attributes:
        num_blocks: Blocks in every tensor; block 0 is the null block and belongs to nobody.
        max_model_len: Tokens of the longest request that will be admitted.
    """

    num_blocks: int
    groups: tuple[KVGroup, ...]
    tensors: tuple[KVTensor, ...] = field(default=())
    max_model_len: int = 0
