"""The interface of an attention backend.

Dimensions, here and in every backend:
    T  tokens in the batch, all requests after each other     B  KV blocks in the pool
    R  requests in the batch                                  S  tokens per KV block
    H  query heads, on this device                            D  numbers per head
    K  key/value heads, on this device                        V  vocabulary

A backend is chosen per KV group, and built for each head shape in it. It decides how the raw bytes
of a KV tensor are laid out (the block index is outermost, and one block is contiguous), builds its
own metadata once a step, and in `forward` writes the new K and V and attends. Block 0 is the null
block: padding writes there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

GraphSupport = Literal["none", "decode", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """What one KV group needs from a backend."""

    device: str  # "cpu", "cuda"
    dtype: str
    kv_dtype: str
    num_heads: int  # on one device
    num_kv_heads: int
    head_dim: int
    block_size: int | None = None  # None: the backend's own default will be taken
    layout: str = "kv"  # "kv", "mla", "state": which contract the layer speaks
    sliding_window: int | None = None
    attention_chunk: int | None = None
    logit_soft_cap: float | None = None
    has_sinks: bool = False
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapabilities:
    """What a backend can do, declared at registration. None means: any.

    Attributes:
        priority: `auto` takes the highest among those that can serve.
        padded_pages: Its `kv_view` takes pages that are longer than what a layer keeps in them.
        default_block_size: Used when the user does not choose.
        graphs: Which steps it can run inside a captured CUDA graph.
    """

    devices: frozenset[str]
    dtypes: frozenset[str]
    kv_dtypes: frozenset[str]
    head_dims: frozenset[int] | None = None
    block_sizes: frozenset[int] | None = None
    layouts: frozenset[str] = frozenset({"kv"})
    sliding_window: bool = False
    attention_chunk: bool = False
    logit_soft_cap: bool = False
    padded_pages: bool = False
    sinks: bool = False
    batch_invariant: bool = False
    graphs: GraphSupport = "none"
    default_block_size: int = 16
    priority: int = 0

    def refusal(self, query: AttentionQuery) -> str | None:
        """Return why `query` cannot be served, or None if it can."""
        sets = (
            ("device", query.device, self.devices),
            ("dtype", query.dtype, self.dtypes),
            ("KV dtype", query.kv_dtype, self.kv_dtypes),
            ("head size", query.head_dim, self.head_dims),
            ("block size", query.block_size, self.block_sizes),
            ("layout", query.layout, self.layouts),
        )
        for what, wanted, served in sets:
            if served is not None and wanted is not None and wanted not in served:
                known = ", ".join(sorted(map(str, served)))
                return f"{what} {wanted} is not among {known}"
        features = (
            ("sliding windows", query.sliding_window is not None, self.sliding_window),
            ("chunked local attention", query.attention_chunk is not None, self.attention_chunk),
            ("a logit soft-cap", query.logit_soft_cap is not None, self.logit_soft_cap),
            ("attention sinks", query.has_sinks, self.sinks),
            ("batch-invariant mode", query.batch_invariant, self.batch_invariant),
        )
        for what, is_wanted, is_served in features:
            if is_wanted and not is_served:
                return f"it does not support {what}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The sizes that a backend is built for: one head shape of one KV group on one device.

    Attributes:
        page_bytes: From one block of a layer to its next, where pages are padded; None: as long as
            what the layer keeps.
        batch_invariant: A query's answer must have the same bits whatever else is in the step, and
            however its context was computed. Only who declares `batch_invariant` gets it.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_blocks_per_request: int
    dtype: torch.dtype
    device: torch.device
    page_bytes: int | None = None
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True)
class AttentionLayerParams:
    """What differs between layers of one group.

    Attributes:
        sliding_window: Tokens that a query sees, itself included; None: all.
        attention_chunk: A query at position p sees from `p // attention_chunk * attention_chunk`
            on; None: from the beginning.
    """

    scale: float
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    sinks: Tensor | None = None  # [H]
    k_scale: float = 1.0  # of a quantized cache
    v_scale: float = 1.0
    attention_chunk: int | None = None


@dataclass(slots=True, kw_only=True)
class StepLayout:
    """Where each token of a step belongs, for one KV group; the same for all its layers.

    The tensors may be longer than the step, padded with zeros: rows of padding have length 0, their
    tokens go to block 0, and what comes out for them is not read. Today they are exact and made
    anew each step; a backend whose `graphs` is not "none" will get fixed buffers. The host's copies
    are always exact and free to read, but not in a captured `forward`.
    """

    query_start: Tensor  # [R + 1] int32; request r owns tokens query_start[r] to query_start[r + 1]
    seq_lens: Tensor  # [R] int32; computed and new tokens together
    block_table: Tensor  # [R, max_blocks] int32; 0 beyond the request's blocks
    slot_mapping: Tensor  # [T] int64; block id * S + offset: where K and V of each token go
    num_tokens: int
    query_lens_host: list[int]
    seq_lens_host: list[int]


class AttentionBackend(ABC):
    """Causal attention over a paged KV cache, for one KV group on one device."""

    def __init__(self, shape: AttentionShape) -> None:
        self.shape = shape

    @classmethod
    @abstractmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return this backend's view of the raw bytes of one layer.

        Layers of other KV groups may keep theirs in the same bytes, in other blocks.

        Args:
            raw: uint8, zeroed; `[num_blocks * spec.page_bytes]` or, where pages are padded,
                `[num_blocks, spec.page_bytes]` whose first stride is `AttentionShape.page_bytes`, a
                multiple of `spec.row_bytes`. Only who declares `padded_pages` gets the latter.
            spec: The layer's KV-cache spec.
            num_blocks: B.
        """

    @abstractmethod
    def prepare(self, step: StepLayout) -> Any:
        """Build what `forward` needs, once a step; whatever is returned is handed to `forward`.

        Table entries of tokens that no query of the step may see name the null block, or blocks
        that others own by now; what lies there may be anything, not-a-number included.
        """

    def forget_context(self) -> None:  # noqa: B027 (most hold nothing)
        """Hear that KV was written from outside: by a KV store, or by copying blocks.

        A backend that keeps anything of the cache from step to step must drop it. By default there
        is nothing to drop.
        """

    @abstractmethod
    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,  # as `kv_view` made it; written in place
        metadata: Any,  # as `prepare` made it
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write `k` and `v` to their slots, then attend from `q` to the whole context."""
