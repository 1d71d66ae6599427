"""The interface of an attention backend.

Dimensions, here and in every backend:
    T  tokens in the batch, all requests after each other     B  KV blocks in the pool
    R  requests in the batch                                  S  tokens per KV block
    H  query heads, on this device                            D  numbers per head
    K  key/value heads, on this device                        V  vocabulary

A backend is built for each head shape of a KV group. It decides how the raw bytes of a KV tensor
are laid out (the block index is outermost, and one block is contiguous), builds its own metadata
once a step, and in `forward` writes the new K and V and attends. Block 0 is the null block: padding
writes there.

A step may be captured as a CUDA graph and replayed with other numbers in the same buffers. Then
`prepare` and `forward` are captured as well, so they may not look at a number that the host knows
only for this step: grids depend on the sizes of buffers, lengths are read on the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
    latent_dim: int | None = None  # of the layout "mla": numbers of a head that are the latent
    batch_invariant: bool = False
    compute_capability: int | None = None  # of a CUDA device: 90 for 9.0; None: not known
    native_unavailable_reason: str | None = (
        None  # why compiled CPU kernels cannot be used; None: they can
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapabilities:
    """What a backend can do, declared at registration. None means: any.

    Attributes:
        priority: `auto` takes the highest among those that can serve.
        latent_dims: Of the layout "mla": numbers of a latent.
        rope_dims: Of the layout "mla": numbers of the rotated key, what is left of a head.
        padded_pages: Its `kv_view` takes pages that are longer than what a layer keeps in them.
        default_block_size: Used when the user does not choose.
        graphs: Which steps it can run inside a captured CUDA graph: none, those with one token a
            request, or all.
        min_compute_capability: Of a CUDA device: 80 for 8.0.
        needs_native: It runs compiled CPU kernels (`quire.native`).
    """

    devices: frozenset[str]
    dtypes: frozenset[str]
    kv_dtypes: frozenset[str]
    head_dims: frozenset[int] | None = None
    latent_dims: frozenset[int] | None = None
    rope_dims: frozenset[int] | None = None
    block_sizes: frozenset[int] | None = None
    layouts: frozenset[str] = frozenset({"kv"})
    sliding_window: bool = False
    attention_chunk: bool = False
    logit_soft_cap: bool = False
    padded_pages: bool = False
    sinks: bool = False
    batch_invariant: bool = False
    graphs: GraphSupport = "none"
    min_compute_capability: int | None = None
    needs_native: bool = False
    default_block_size: int = 16
    priority: int = 0

    def refusal(self, query: AttentionQuery) -> str | None:
        """Return why `query` cannot be served, or None if it can."""
        latent_dim = query.latent_dim
        rope_dim = None if latent_dim is None else query.head_dim - latent_dim
        sets: tuple[tuple[str, Any, frozenset[Any] | None], ...] = (
            ("device", query.device, self.devices),
            ("layout", query.layout, self.layouts),
            ("dtype", query.dtype, self.dtypes),
            ("KV dtype", query.kv_dtype, self.kv_dtypes),
            ("head size", query.head_dim, self.head_dims),
            ("latent size", latent_dim, self.latent_dims),
            ("rotated key size", rope_dim, self.rope_dims),
            ("block size", query.block_size, self.block_sizes),
        )
        for what, wanted, served in sets:
            if served is not None and wanted is not None and wanted not in served:
                known = ", ".join(map(str, sorted(served)))
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
        if self.needs_native and query.native_unavailable_reason is not None:
            return f"it runs compiled kernels: {query.native_unavailable_reason}"
        return self._device_refusal(query)

    def _device_refusal(self, query: AttentionQuery) -> str | None:
        least, here = self.min_compute_capability, query.compute_capability
        if query.device != "cuda" or least is None or here is None or here >= least:
            return None
        return (
            f"it needs a GPU of compute capability {least // 10}.{least % 10}, and this one has "
            f"{here // 10}.{here % 10}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The sizes that a backend is built for: one head shape of one KV group on one device.

    Attributes:
        kv_dtype: Element type of the cache, a key of `kv_cache.DTYPE_BYTES`.
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
    kv_dtype: str
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
        sinks: A logit of each query head that takes its share of the softmax, and has no value.
        k_scale: Of a float8 cache: what is kept is k / k_scale.
        v_scale: The same of v.
    """

    scale: float
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    sinks: Tensor | None = None  # [H] float32
    k_scale: float = 1.0
    v_scale: float = 1.0
    attention_chunk: int | None = None


@dataclass(slots=True, kw_only=True)
class StepLayout:
    """Where each token of a step belongs, for one KV group; the same for all its layers.

    The tensors may be longer than the step. Rows of padding stand last: they have length 0 and no
    tokens, and tokens of padding go to block 0. A backend may leave anything in their rows of its
    result, not-a-numbers included: nothing reads them. In a captured step the tensors are fixed
    buffers, only the device knows what is in them, and the host's lists are empty; otherwise these
    are exact and free to read.
    """

    query_start: Tensor  # [R + 1] int32; request r owns tokens query_start[r] to query_start[r + 1]
    seq_lens: Tensor  # [R] int32; computed and new tokens together
    block_table: Tensor  # [R, max_blocks] int32; anything beyond the request's blocks
    slot_mapping: Tensor  # [T] int64; block id * S + offset: where K and V of each token go
    num_tokens: int  # the tensors' length in a captured step
    max_query_len: int  # no request has more tokens in this step; 1: a decode step
    query_lens_host: list[int]
    seq_lens_host: list[int]


@dataclass(frozen=True, slots=True)
class RotaryStep:
    """What is done to q and k of a step before they are kept and compared.

    Each head is divided by its root mean square and multiplied by its `norm_weight`, if there is
    one, and then turned by its token's angles, the first half of its numbers against the second:
    `x * cos + swap_halves(x) * sin`.

    Attributes:
        table: `[P, 2, D]`: cosines and sines of each position, the sines of the first half negated.
        positions: `[T]` int64, rows of the table.
        norm_weight: `[H + K, D]`, of the query heads and then of the key heads; None: no norm.
        norm_eps: Added to the mean square.
    """

    table: Tensor
    positions: Tensor
    norm_weight: Tensor | None = None
    norm_eps: float = 0.0


class KVBackend(ABC):
    """What the backends of every contract share: a view of the cache, and metadata once a step."""

    def __init__(self, shape: AttentionShape) -> None:
        """Build what all layers of a shape share.

        Raises:
            RefusedError: It turns out only now that it cannot serve on this machine. Then the next
                best backend takes its place, unless the user named this one.
        """
        self.shape = shape

    @classmethod  # noqa: B027 (most have nothing to start)
    def begin_loading(cls) -> None:
        """Start in the background what takes long and needs no weights, such as compiling.

        It is called once, before weights are loaded. By default there is nothing to start.
        """

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the device memory that a backend of this shape allocates for itself."""
        del shape
        return 0

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


class AttentionBackend(KVBackend):
    """Causal attention over a paged KV cache, for one head shape of one KV group on one device.

    Attributes:
        fuses_rotary: `forward_rotary` is implemented, and is used wherever it can be.
    """

    fuses_rotary: ClassVar[bool] = False

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

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2 * K, D], contiguous; may be written over
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: Any,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Do the same from the heads as they were projected: norm, rotation, write and attention.

        Raises:
            NotImplementedError: `fuses_rotary` is False.
        """
        raise NotImplementedError(f"{type(self).__name__} does not fuse the rotary embedding")
