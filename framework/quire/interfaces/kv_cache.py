"""The interface of a KV-cache spec: the use of KV blocks by one type of layer.

A spec is arithmetic without torch and without state, so the engine can plan with it, and `quire
explain` can print the plan before anything is loaded. A spec describes *one layer*. Layers whose
specs use blocks in the same way form a KV group, and a request has one block table per group.

A table index stands for `block_size` tokens, and a table only grows. A block that no later token
reads is freed while the request runs, and its index then names the null block:

    tokens           0 ......................... n
    block table      [ 0 | 0 | 0 | 17 | 4 | 29 ]      blocks_needed(n) = 6
                       freeable      kept             freeable_blocks(n) = range(3)

A prefix cache hit of `h` blocks fills the beginning of such a table: only the blocks outside
`freeable_blocks(h * block_size)` must be cached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
SCALE_BYTES = {"int8": 4}  # one float32 per row; the row holds round(x / scale)


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer of a model that stores data in the KV cache.

    Attributes:
        name: Module path of the attention layer, as in `model.named_modules()`.
        spec: Name of its KV-cache spec in the registry.
        num_kv_heads: Number of key/value heads of the whole model, before tensor parallelism.
        head_dim: Elements per head.
        params: Further parameters of the spec (a window, a state's shape) as hashable pairs.
        has_sinks: True if its heads have learned sinks, which its backend must support.
        layer_index: Index of the decoder layer that it is part of, which decides its pipeline
            stage; None for all if each decoder layer has one, in order.
        has_alibi: True if its scores have linear biases (ALiBi), which its backend must support.
    """

    name: str
    spec: str
    num_kv_heads: int
    head_dim: int
    params: tuple[tuple[str, Any], ...] = ()
    has_sinks: bool = False
    layer_index: int | None = None
    has_alibi: bool = False

    def param(self, name: str, default: Any = None) -> Any:
        """Return a further parameter of the spec by name."""
        return dict(self.params).get(name, default)


@dataclass(frozen=True, slots=True)
class KVSpecCapabilities:
    """Properties of a KV-cache spec, declared at registration so that a backend can be chosen.

    Attributes:
        layout: Contract between its layers and a backend: "kv", or another one that a backend must
            declare in `AttentionCapabilities.layouts`.
        window_param: Name of the layer parameter that holds the sliding window; None: no window.
        chunk_param: Name of the layer parameter that holds the chunk length of local attention;
            None: no chunks.
    """

    layout: str = "kv"
    window_param: str | None = None
    chunk_param: str | None = None


class KVCacheSpec(ABC):
    """The use of KV blocks by one layer. Pure; layers whose specs have equal keys form a KV group.

    Args:
        layer: Description of the layer by the model.
        block_size: Tokens per block.
        kv_dtype: Element type of the cache, a key of `DTYPE_BYTES`.
        tp_size: Number of devices that each layer is sharded over.
    """

    needs_whole_prefix = False  # True: a hit ends at the first block that is not cached

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        self.layer = layer
        self.block_size = block_size
        self.kv_dtype = kv_dtype
        self.tp_size = tp_size

    @property
    def key(self) -> tuple[Any, ...]:
        """Key that is equal for layers whose block tables are always equal; pages may differ."""
        return (type(self), self.block_size, self.layer.params)

    @property
    @abstractmethod
    def page_bytes(self) -> int:
        """Bytes of one block of one layer on one device."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one head of one token, scale included. Padded pages hold whole rows."""
        scale_bytes = SCALE_BYTES.get(self.kv_dtype, 0)
        return self.layer.head_dim * DTYPE_BYTES[self.kv_dtype] + scale_bytes

    def with_block_size(self, block_size: int) -> Self:
        """Return the spec of the same layer with another block size."""
        return type(self)(self.layer, block_size, self.kv_dtype, self.tp_size)

    def without_prefix_hits(self) -> Self:
        """Return the spec for an engine without prefix caching; by default the same spec."""
        return self

    @abstractmethod
    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the length of the block table of a request with `num_tokens` tokens.

        Args:
            num_tokens: Number of tokens whose KV is stored, the next step's tokens included.
            num_lookahead_tokens: Number of further slots to reserve for draft tokens. Always 0 for
                now, as speculative decoding does not use it yet.
        """

    @abstractmethod
    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the most blocks that a request of `num_tokens` tokens holds at the same time."""

    @abstractmethod
    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return the table indices that no later token will read."""

    @abstractmethod
    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the length, in blocks, of the longest usable prefix hit.

        Args:
            is_cached: Whether the cache holds a block, for each full block of the prompt.
        """

    def cacheable_blocks(self, fresh: range, num_computed_tokens: int) -> range:
        """Return the `fresh` table indices whose blocks a later prefix hit could use.

        Args:
            fresh: Indices of the blocks that have become full and computed.
            num_computed_tokens: Current number of computed tokens.
        """
        del num_computed_tokens
        return fresh


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share a block table, because their specs have equal keys.

    Attributes:
        spec: Spec that is valid for all layers of the group, except for sizes in bytes.
        layer_names: Names of the layers on one pipeline stage; it may have none of the group.
        layer_specs: Specs of the layers in the same order; they may differ in sizes in bytes.
        backend: Name of the group's attention backend; "" until it is chosen.
    """

    spec: KVCacheSpec
    layer_names: tuple[str, ...]
    layer_specs: tuple[KVCacheSpec, ...]
    backend: str = ""


@dataclass(frozen=True, slots=True)
class KVTensor:
    """One allocation of raw bytes, used by one layer of each group (or by a single layer)."""

    num_bytes: int
    layer_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KVPlan:
    """Memory layout of the whole KV cache on one device.

    Attributes:
        num_blocks: Number of blocks in every tensor, including block 0, the null block, which is
            never allocated.
        groups: KV groups in the order of a request's block tables.
        tensors: Allocations; block `b` of a tensor begins at byte `b * page_bytes(tensor)`.
        max_model_len: Number of tokens of the longest request that is admitted.
        rank: Rank in the grid that has this cache; before it is with a worker, the first of the
            pipeline stage. A KV store that several ranks write to keeps their blocks apart by it.
    """

    num_blocks: int
    groups: tuple[KVGroup, ...]
    tensors: tuple[KVTensor, ...] = field(default=())
    max_model_len: int = 0
    rank: int = 0

    @property
    def block_size(self) -> int:
        """Tokens per block, the same in every group; 0 if no layer uses the cache."""
        return self.groups[0].spec.block_size if self.groups else 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def bytes_a_block(self) -> int:
        """Bytes of one block id, summed over all tensors."""
        return sum(self.page_bytes(tensor) for tensor in self.tensors)

    def padding_bytes(self, group: KVGroup) -> int:
        """Return the bytes of a group's block, over all tensors, that its layers do not use."""
        return self.bytes_a_block - sum(spec.page_bytes for spec in group.layer_specs)

    @property
    def padded_layers(self) -> frozenset[str]:
        """Names of the layers whose pages are longer than their data."""
        lengths = {
            name: self.page_bytes(tensor) for tensor in self.tensors for name in tensor.layer_names
        }
        specs = [spec for group in self.groups for spec in group.layer_specs]
        padded = (s.layer.name for s in specs if s.page_bytes < lengths[s.layer.name])
        return frozenset(padded)

    def page_bytes(self, tensor: KVTensor) -> int:
        """Return the bytes from one block of a tensor to the next, padding included."""
        return tensor.num_bytes // self.num_blocks
