"""The interface of a KV-cache spec: how one kind of layer uses KV blocks.

A spec is arithmetic. It has no torch and no state, so the engine can plan with it and `quire
explain` can print the plan before anything is loaded. A spec describes *one layer*; layers whose
specs use blocks alike form a KV group, and a request has one block table a group.

A table index stands for `block_size` tokens, and a table only grows. What no later token reads goes
back to the pool while the request runs, and its index then names the null block:

    tokens           0 ......................... n
    block table      [ 0 | 0 | 0 | 17 | 4 | 29 ]      blocks_needed(n) = 6
                       freeable      kept             freeable_blocks(n) = range(3)

A prefix hit begins such a table: of `h` blocks only those outside `freeable_blocks(h * block_size)`
must be there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
SCALE_BYTES = {"int8": 4}  # a float32 for each row, which then holds round(x / scale)


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer of a model that keeps something in the cache.

    Attributes:
        name: Module path of the attention layer, as in `model.named_modules()`.
        spec: Name of its KV-cache spec in the registry.
        num_kv_heads: Key/value heads of the whole model, before tensor parallelism.
        head_dim: Numbers per head.
        params: What the spec needs besides (a window, a state's shape); hashable pairs.
        has_sinks: Its heads have learned sinks, so its backend must serve them.
    """

    name: str
    spec: str
    num_kv_heads: int
    head_dim: int
    params: tuple[tuple[str, Any], ...] = ()
    has_sinks: bool = False

    def param(self, name: str, default: Any = None) -> Any:
        """Return what the spec needs besides, by name."""
        return dict(self.params).get(name, default)


@dataclass(frozen=True, slots=True)
class KVSpecCapabilities:
    """What a KV-cache spec declares at registration, so that a backend is found without its code.

    Attributes:
        layout: Which contract its layers speak with a backend: "kv", or another that a backend
            must declare in `AttentionCapabilities.layouts`.
        window_param: The layer's parameter that holds its sliding window, if it has one.
        chunk_param: The same for chunks of local attention.
    """

    layout: str = "kv"
    window_param: str | None = None
    chunk_param: str | None = None


class KVCacheSpec(ABC):
    """How one layer uses KV blocks. Pure; layers whose specs have equal keys share a KV group.

    Args:
        layer: The layer, as the model describes it.
        block_size: Tokens a block.
        kv_dtype: Element type of the cache, a key of `DTYPE_BYTES`.
        tp_size: Devices that share each layer.
    """

    needs_whole_prefix = False  # a hit ends at the first block that is not cached

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        self.layer = layer
        self.block_size = block_size
        self.kv_dtype = kv_dtype
        self.tp_size = tp_size

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for layers whose block tables are always equal, whatever their pages hold."""
        return (type(self), self.block_size, self.layer.params)

    @property
    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes of one block of one layer on one device."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one head of one token, its scale included. Padded pages are whole rows."""
        scale_bytes = SCALE_BYTES.get(self.kv_dtype, 0)
        return self.layer.head_dim * DTYPE_BYTES[self.kv_dtype] + scale_bytes

    def with_block_size(self, block_size: int) -> Self:
        """Return the same layer's spec with other blocks."""
        return type(self)(self.layer, block_size, self.kv_dtype, self.tp_size)

    def without_prefix_hits(self) -> Self:
        """Return the spec for an engine that never looks for a prefix; by default the same."""
        return self

    @abstractmethod
    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the length of the block table of a request with so many tokens.

        Args:
            num_tokens: Tokens whose KV is stored, those of the coming step included.
            num_lookahead_tokens: Slots kept ready beyond them; for speculation, which does not
                use it yet: the engine passes 0.
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

    def cacheable_blocks(self, fresh: range, num_computed_tokens: int) -> range:
        """Return those of the `fresh` table indices whose content a later prefix hit could use.

        Args:
            fresh: Indices of the blocks that have become full and computed.
            num_computed_tokens: Tokens that are computed now.
        """
        del num_computed_tokens
        return fresh


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table, because their specs have equal keys.

    Attributes:
        spec: Speaks for all of them in everything but bytes.
        layer_names: On one pipeline stage; a stage may have none of a group's layers.
        layer_specs: Of each layer, in the same order: pages may differ in what they hold.
        backend: Attention backend that serves the group; "" until composed.
    """

    spec: KVCacheSpec
    layer_names: tuple[str, ...]
    layer_specs: tuple[KVCacheSpec, ...]
    backend: str = ""


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
        groups: In the order of a request's block tables.
        tensors: Block `b` of one has the bytes from `b * page_bytes(tensor)` on.
        max_model_len: Tokens of the longest request that will be admitted.
    """

    num_blocks: int
    groups: tuple[KVGroup, ...]
    tensors: tuple[KVTensor, ...] = field(default=())
    max_model_len: int = 0

    @property
    def block_size(self) -> int:
        """Tokens a block, the same in every group; 0 where no layer keeps anything."""
        return self.groups[0].spec.block_size if self.groups else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def bytes_a_block(self) -> int:
        """Bytes of one block id, over all tensors."""
        return sum(self.page_bytes(tensor) for tensor in self.tensors)

    def padding_bytes(self, group: KVGroup) -> int:
        """Bytes of a block of a group, over all tensors, that its layers cannot use."""
        return self.bytes_a_block - sum(spec.page_bytes for spec in group.layer_specs)

    @property
    def padded_layers(self) -> frozenset[str]:
        """Names of the layers that keep less in a page than the page is long."""
        lengths = {
            name: self.page_bytes(tensor) for tensor in self.tensors for name in tensor.layer_names
        }
        specs = [spec for group in self.groups for spec in group.layer_specs]
        padded = (s.layer.name for s in specs if s.page_bytes < lengths[s.layer.name])
        return frozenset(padded)

    @property
    def has_padded_pages(self) -> bool:
        """Whether a layer keeps less in a page than the page is long."""
        return bool(self.padded_layers)

    def page_bytes(self, tensor: KVTensor) -> int:
        """Bytes from one block of a tensor to the next; more than a layer's own where padded."""
        return tensor.num_bytes // self.num_blocks
