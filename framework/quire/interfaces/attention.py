"""The interface of an attention backend.

Dimensions, here and in every backend:
    T  tokens in the batch, requests concatenated             B  KV blocks in the pool
    R  requests in the batch                                  S  tokens per KV block
    H  query heads on this device                             D  elements per head (head_dim)
    K  key/value heads on this device                         V  vocabulary size

One backend is built for each head shape of a KV group. It defines the layout of a KV tensor's raw
bytes (the block index is outermost, and each block is contiguous), builds its own metadata once per
step, and in `forward` writes the new K and V and computes attention. Block 0 is the null block:
padding tokens are written there.

A step may be captured as a CUDA graph and replayed with other values in the same buffers. Then
`prepare` and `forward` are part of the capture, so they must not depend on values that the host has
for this step only: launch grids depend on buffer sizes, and lengths are read on the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from quire.interfaces.reference import check_reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

GraphSupport = Literal["none", "decode", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """Requirements of one KV group on an attention backend."""

    device: str  # "cpu", "cuda"
    dtype: str
    kv_dtype: str
    num_heads: int  # on one device
    num_kv_heads: int
    head_dim: int
    block_size: int | None = None  # None: the backend's default block size is used
    layout: str = "kv"  # "kv", "mla", "state": the contract between layer and backend
    sliding_window: int | None = None
    attention_chunk: int | None = None
    logit_soft_cap: float | None = None
    has_sinks: bool = False
    has_alibi: bool = False
    latent_dim: int | None = None  # layout "mla" only: elements of a head that are the latent
    batch_invariant: bool = False
    compute_capability: int | None = None  # of the CUDA device, 90 for 9.0; None: unknown
    native_unavailable_reason: str | None = None  # None: compiled CPU kernels are available


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCapabilities:
    """Capabilities of a backend, declared at registration. A set that is None means any value.

    Attributes:
        priority: Rank for `auto`, which takes the supporting backend with the highest one.
        latent_dims: Supported latent sizes in elements, for the layout "mla".
        rope_dims: Supported sizes of the rotated key in elements, for the layout "mla".
        padded_pages: True if `kv_view` accepts pages that are longer than the layer's data in them.
        default_block_size: Block size that is used unless the user sets one.
        graphs: Steps that can run inside a captured CUDA graph: none, those with one token per
            request, or all.
        min_compute_capability: Minimum for CUDA devices, 80 for 8.0.
        needs_native: True if the backend runs compiled CPU kernels (`quire.native`).
        probe: Import string of a function without arguments that prepares what the backend runs,
            such as compiled kernels, and returns the reason why this machine cannot run it, or
            None. It runs before the choice is final, in a thread, and must not import torch.
        refuses: Import string of a function that takes an `AttentionQuery` and returns the reason
            why the backend does not support such layers, or None: for requirements that the other
            fields cannot express. It must not import torch.
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
    alibi: bool = False
    batch_invariant: bool = False
    graphs: GraphSupport = "none"
    min_compute_capability: int | None = None
    needs_native: bool = False
    probe: str | None = None
    refuses: str | None = None
    default_block_size: int = 16
    priority: int = 0

    def __post_init__(self) -> None:
        for name, reference in (("probe", self.probe), ("refuses", self.refuses)):
            if reference is not None:
                check_reference(reference, f"an attention backend's {name}")

    def refusal(self, query: AttentionQuery) -> str | None:
        """Return the reason why `query` is not supported, or None if it is."""
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
            ("linear biases (ALiBi)", query.has_alibi, self.alibi),
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
    """Sizes that a backend is built for: one head shape of one KV group on one device.

    Attributes:
        kv_dtype: Element type of the cache, a key of `kv_cache.DTYPE_BYTES`.
        page_bytes: Stride in bytes between two blocks of a layer, if pages are padded; None: pages
            are not padded.
        batch_invariant: True if a query's result must be bitwise the same whatever else is in the
            step, and however its context was computed. Set only for backends that declare
            `batch_invariant`.
        product_dtype: Compute dtype. If it is narrower than `dtype`, a backend may round factors of
            its products to it, with sums in float32. None: it is `dtype`.
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
    product_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class AttentionLayerParams:
    """Parameters that differ between the layers of one group.

    Attributes:
        sliding_window: Number of tokens a query attends to, itself included; None: all.
        attention_chunk: Chunk length of local attention: a query at position p attends from
            `p // attention_chunk * attention_chunk` on; None: from position 0.
        sinks: One extra logit per query head that takes part in the softmax and has no value.
        k_scale: Scale of K in a float8 cache, which stores k / k_scale.
        v_scale: Scale of V in a float8 cache, which stores v / v_scale.
        alibi_slopes: Slope of the linear bias of each query head (ALiBi): `slope * (key - query)`,
            with the positions of both, is added to a score behind the soft cap; None: no bias.
    """

    scale: float
    sliding_window: int | None = None
    logit_soft_cap: float | None = None
    sinks: Tensor | None = None  # [H] float32
    k_scale: float = 1.0
    v_scale: float = 1.0
    attention_chunk: int | None = None
    alibi_slopes: Tensor | None = None  # [H] float32


@dataclass(slots=True, kw_only=True)
class StepLayout:
    """Layout of a step's tokens in one KV group; the same for all its layers.

    The tensors may be longer than the step. Padding rows come last: they have length 0 and no
    tokens, and padding tokens are written to block 0. A backend may leave any values in the padding
    rows of its result, NaN included: they are never read. In a captured step the tensors are fixed
    buffers whose contents only the device has, and the host lists are empty. Otherwise the host
    lists are exact, and reading them costs no synchronisation.
    """

    query_start: Tensor  # [R + 1] int32; request r owns tokens query_start[r] to query_start[r + 1]
    seq_lens: Tensor  # [R] int32; computed and new tokens together
    block_table: Tensor  # [R, max_blocks] int32; undefined behind the request's blocks
    slot_mapping: Tensor  # [T] int64; block id * S + offset of each token's K and V
    num_tokens: int  # in a captured step the length of the tensors
    max_query_len: int  # upper bound of a request's tokens in this step; 1: a decode step
    query_lens_host: list[int]
    seq_lens_host: list[int]


@dataclass(frozen=True, slots=True)
class RotaryStep:
    """Norm and rotary embedding of a step's q and k, applied before K is cached.

    Each head is first divided by its root mean square and multiplied by its `norm_weight`, if there
    is one. Then it is rotated by its token's angles, the first half of its elements against the
    second: `x * cos + swap_halves(x) * sin`.

    Attributes:
        table: `[P, 2, D]`: cosines and sines of each position, the sines of the first half negated.
        positions: `[T]` int64, row of the table for each token.
        norm_weight: `[H + K, D]`, the query heads' weights, then the key heads'; None: no norm.
        norm_eps: Term added to the mean square.
    """

    table: Tensor
    positions: Tensor
    norm_weight: Tensor | None = None
    norm_eps: float = 0.0


class KVBackend(ABC):
    """Base of the backends of every layout: a view of the cache, and metadata once per step."""

    def __init__(self, shape: AttentionShape) -> None:
        """Build the state that all layers of a shape share.

        The choice is final by then: a reason why the backend cannot run here belongs in its
        capabilities, because an error stops the start-up.

        Raises:
            RefusedError: The backend does not support the shape.
        """
        self.shape = shape

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of device memory that a backend of this shape allocates for itself."""
        del shape
        return 0

    @classmethod
    @abstractmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return this backend's view of the raw bytes of one layer.

        Layers of other KV groups may use the same bytes, in other blocks.

        Args:
            raw: uint8, zeroed; `[num_blocks * spec.page_bytes]` or, where pages are padded,
                `[num_blocks, spec.page_bytes]` whose first stride is `AttentionShape.page_bytes`, a
                multiple of `spec.row_bytes`. Pages are padded only for backends that declare
                `padded_pages`.
            spec: KV-cache spec of the layer.
            num_blocks: B.
        """

    def prepare(self, step: StepLayout) -> Any:
        """Return the metadata of a step, which is passed to each call of `forward`.

        The default returns the step itself. Override it for what all layers have in common.

        Table entries for tokens outside every query's attention bounds name the null block, or
        blocks that now belong to other requests. Their contents are undefined and may be NaN.
        """
        return step

    def forget_context(self) -> None:  # noqa: B027 (most hold nothing)
        """Drop state derived from the cache: KV was written by a KV store or by block copies.

        Needed only by backends that keep such state between steps. The default does nothing.
        """


class AttentionBackend(KVBackend):
    """Causal attention over a paged KV cache, for one head shape of one KV group on one device.

    Attributes:
        fuses_rotary: True if `forward_rotary` is implemented; it is then used where possible.
    """

    fuses_rotary: ClassVar[bool] = False

    @abstractmethod
    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,  # as `kv_view` returned it; written in place
        metadata: Any,  # as `prepare` returned it
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write `k` and `v` to their slots, and return the attention of `q` over the context.

        Several layers of a model may share one cache. Then it is called again in the same step,
        with that cache, other queries, and the K and V that it has written already.
        """

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2 * K, D], contiguous; may be written over
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: Any,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Apply norm and rotation to the projected heads, then do what `forward` does.

        Raises:
            NotImplementedError: `fuses_rotary` is False.
        """
        raise NotImplementedError(f"{type(self).__name__} does not fuse the rotary embedding")
