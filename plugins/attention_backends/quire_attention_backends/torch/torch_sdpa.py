"""Attention in plain PyTorch: gathers the context of many rows and attends in batches.

It is the reference for every other backend, and the backend of a CPU without compiled kernels. One
layer of a decode step is six operators: write K and V (cat, index_copy), gather (index_select), and
attend (baddbmm, softmax, bmm). Indices and masks are built once per step and shared by all layers.
The query heads of a group are folded into the query rows, so K and V are never repeated. Spans of
different lengths are sorted into buckets (`spans`); Python loops over buckets, never over requests.

The design follows from these measurements: microseconds per layer in float32 with 192 tokens of
context, on two otherwise idle cores of a Zen 5.

    |                                        | 16 rows, H 4, K 2, D 64 | 8 rows, H 16, K 8, D 128 |
    | gather K and V by rows of D elements   |                      40 |                      156 |
    | gather whole blocks, heads innermost   |                      33 |                      109 |
    | baddbmm, softmax, bmm                  |                      60 |                      179 |
    | fused SDPA on whole blocks, folded     |                     113 |                      302 |
    | fused SDPA on whole blocks, enable_gqa |                      94 |                      272 |
    | math SDPA on whole blocks              |                     292 |                    5,990 |

Gathering whole blocks is faster, but it leaves K and V in an order that slows matrix products down,
and it includes the unwritten end of the last block. From about a dozen queries per row on, the
fused kernel is as fast as explicit products and needs less memory. It also keeps the scores of
bfloat16 and float16 in float32, so it is always used for those types.

A batch gathers at most 8 MiB on a CPU, so that the copy is still in the CPU's caches when it is
read. On one core of a busy machine, 12 MiB in one batch took twice as long as in two batches, and
100 MiB three times as long as in pieces.

Batch-invariant mode uses `tiled_batch` instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.shared.kv_layout import (
    DTYPES,
    Pages,
    PagesBackend,
    kind_of,
    split_pages,
)
from quire_attention_backends.torch.held_context import HeldBatch, HeldContext
from quire_attention_backends.torch.kept_rows import read_rows, write_rows
from quire_attention_backends.torch.query_order import QueryOrder
from quire_attention_backends.torch.span_batch import SpanBatch, build
from quire_attention_backends.torch.span_products import (
    explicit,
    explicit_float32,
    fold,
    folded_sinks,
    fused,
    linear_biases,
    unfold,
)
from quire_attention_backends.torch.spans import MAX_QUERIES, Spans, batches, cut
from quire_attention_backends.torch.tiled_batch import (
    TILE,
    TiledBatch,
    attend_in_tiles,
    build_tiled,
    check_rows,
)
from quire_attention_backends.torch.varlen import (
    VarlenAttention,
    VarlenBatch,
    build_varlen,
    num_keys_seen,
)

if TYPE_CHECKING:
    from torch import Tensor

CALL_COST_BYTES = 2**20  # bytes of K and V that are gathered in the time that one more batch costs
MAX_GATHERED_BYTES = {"cpu": 2**23, "cuda": 2**28}  # bytes of K and V per batch
MAX_EXPLICIT_QUERIES = 16


@dataclass(frozen=True, slots=True)
class StepBatches:
    """The batches of a step for the layers with the same attention bounds, and a gather buffer."""

    order: QueryOrder
    batches: list[SpanBatch | TiledBatch]
    gathered: Tensor  # [rows of the largest batch, D]


@dataclass(slots=True)
class StepMetadata:
    """Metadata of a step, shared by all layers.

    Attributes:
        step: The step.
        held_batch: The held batch of this step; None if its context is not held.
        written_rows: `[2 * T * K]` int64, rows of the cache to write: all of K, then all of V;
            built by the first layer.
        step_batches: Batches by attention bounds and whether there are linear biases, built by the
            first layer that has them.
        varlens: Arguments of the varlen kernel by window, built by the first layer that has it;
            None: the kernel is not used.
    """

    step: StepLayout
    held_batch: HeldBatch | None
    written_rows: Tensor | None = None
    step_batches: dict[tuple[AttentionBounds, bool], StepBatches] = field(default_factory=dict)
    varlens: dict[int | None, VarlenBatch | None] = field(default_factory=dict)


class TorchSDPABackend(PagesBackend):
    """Attention over a paged KV cache of the layout [B, 2, K, S, D].

    Args:
        shape: Shape of the backend.
        varlen: Kernel that attends in one call where it can; None: the one of this version of torch
            and this GPU, if any.

    Raises:
        RefusedError: Batch-invariant mode is requested and this machine does not support it.
    """

    name: ClassVar[str] = "torch_sdpa"

    def __init__(self, shape: AttentionShape, varlen: VarlenAttention | None = None) -> None:
        super().__init__(shape)
        if shape.batch_invariant:
            check_rows(shape)
        self._varlen = varlen or VarlenAttention.if_available(shape)
        self._held = HeldContext(shape)
        self._rows: dict[int, CacheRows] = {}  # by the stride between blocks

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of a batch's gathered rows, indices and converted copies on a GPU.

        Scores are not counted; on a CPU the result is 0.
        """
        if shape.device.type == "cpu":
            return 0  # a few MiB, not counted
        values = 2 * shape.num_kv_heads * shape.head_dim  # per token
        kept_bytes, index_bytes = DTYPES[shape.kv_dtype].itemsize, torch.int64.itemsize
        max_len = shape.max_blocks_per_request * shape.block_size
        num_spans = shape.max_num_seqs + shape.max_num_batched_tokens // MAX_QUERIES
        num_fitting = MAX_GATHERED_BYTES[shape.device.type] // (values * kept_bytes)
        num_tokens = max(max_len, min(num_spans * max_len, num_fitting))
        if kind_of(shape.kv_dtype) != "plain":
            kept_bytes += torch.float32.itemsize
        if shape.kv_dtype != str(shape.dtype).removeprefix("torch."):
            kept_bytes += shape.dtype.itemsize
        return num_tokens * values * kept_bytes + num_tokens * 2 * shape.num_kv_heads * index_bytes

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Start or continue a held batch; the first layer builds the rest of the metadata."""
        return StepMetadata(step, self._held.begin(step))

    def forget_context(self) -> None:
        """Gather again in the next step."""
        self._held.forget()

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,  # [B, 2, K, S, D]
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write `k` and `v` to their slots, then attend."""
        pages = split_pages(kv_cache, self.shape)
        rows = self._rows_of(pages)
        if metadata.written_rows is None:
            metadata.written_rows = rows.of_slots(metadata.step.slot_mapping)
        new = write_rows(pages, rows, metadata.written_rows, k, v, layer)
        held_batch = metadata.held_batch
        if held_batch is not None and _is_plain(layer):
            cache = rows.flat(pages.data)
            keys, values = self._held.read(held_batch, cache, rows, new)
            mask = held_batch.mask[:, :, : held_batch.length]
            folded = q.reshape(len(mask), -1, self.shape.head_dim)  # [n * K, G, D]
            return explicit(folded, keys, values, mask, layer.scale).view_as(q)
        varlen = self._varlen
        if varlen is not None and varlen.supports(self.shape, layer):
            batch = self._varlen_batch(metadata, pages, rows, layer.sliding_window)
            if batch is not None:
                k, v = self._keys_of(batch, k, v, pages, layer)
                return varlen.run(q, k, v, batch, layer)
        return self._attend_in_batches(q, pages, metadata, layer)

    def _rows_of(self, pages: Pages) -> CacheRows:
        distance = pages.data.stride(0)
        if distance not in self._rows:
            self._rows[distance] = CacheRows.of(pages, self.shape)
        return self._rows[distance]

    def _varlen_batch(
        self, metadata: StepMetadata, pages: Pages, rows: CacheRows, window: int | None
    ) -> VarlenBatch | None:
        """Return the arguments of the varlen kernel, or None if it would gather too much."""
        if window not in metadata.varlens:
            step, bounds = metadata.step, AttentionBounds(window)
            num_bytes = int(num_keys_seen(step, bounds).sum()) * self._token_bytes(pages)
            fits = 0 < num_bytes <= MAX_GATHERED_BYTES[self.shape.device.type]
            keeps_all = pages.data.dtype == self.shape.dtype
            batch = build_varlen(step, bounds, rows, may_use_own=keeps_all) if fits else None
            metadata.varlens[window] = batch
        return metadata.varlens[window]

    def _keys_of(
        self,
        batch: VarlenBatch,
        k: Tensor,  # [T, K, D]
        v: Tensor,
        pages: Pages,
        layer: AttentionLayerParams,
    ) -> tuple[Tensor, Tensor]:  # [L, K, D] both
        """Return all keys and values of a batch: the step's own, or gathered from the cache."""
        if batch.context is None:
            return k, v
        gathered = pages.data.new_empty(len(batch.context), k.shape[2])
        found = read_rows(pages, self._rows_of(pages), batch.context, gathered, layer)
        keys, values = found.to(k.dtype).view(2, batch.num_keys, -1, k.shape[2])
        return keys, values

    def _attend_in_batches(
        self, q: Tensor, pages: Pages, metadata: StepMetadata, layer: AttentionLayerParams
    ) -> Tensor:  # [T, H, D]
        bounds = AttentionBounds.of(layer)
        key = bounds, layer.alibi_slopes is not None
        prepared = metadata.step_batches.get(key)
        if prepared is None:
            prepared = self._build_step(metadata.step, *key, pages)
            metadata.step_batches[key] = prepared
        if not prepared.batches:  # a step with only padding
            return torch.empty_like(q)
        outputs = [
            self._attend(some, pages, batch, prepared.gathered, layer)
            for some, batch in zip(prepared.order.split_queries(q), prepared.batches, strict=True)
        ]
        return prepared.order.join_outputs(outputs)

    def _token_bytes(self, pages: Pages) -> int:
        return 2 * self.shape.num_kv_heads * self.shape.head_dim * pages.data.itemsize

    def _build_step(
        self, step: StepLayout, bounds: AttentionBounds, has_alibi: bool, pages: Pages
    ) -> StepBatches:
        token_bytes = self._token_bytes(pages)
        max_bytes = MAX_GATHERED_BYTES[self.shape.device.type]
        limits = CALL_COST_BYTES / token_bytes, max_bytes // token_bytes
        tile = TILE if self.shape.batch_invariant else 1
        spans = cut(step.query_lens_host, step.seq_lens_host, bounds, tile)
        grouped = batches(spans, *limits)
        rows = self._rows_of(pages)
        built = [self._build(some, step.block_table, bounds, rows, has_alibi) for some in grouped]
        num_rows = max((len(batch.context) for batch in built), default=0)
        order = QueryOrder.of(grouped, len(step.slot_mapping), step.block_table.device)
        return StepBatches(order, built, pages.data.new_empty(num_rows, self.shape.head_dim))

    def _build(
        self,
        spans: Spans,
        block_table: Tensor,
        bounds: AttentionBounds,
        rows: CacheRows,
        has_alibi: bool,
    ) -> SpanBatch | TiledBatch:
        shape = self.shape
        if shape.batch_invariant:
            return build_tiled(spans, block_table, bounds, shape, rows, has_alibi)
        is_explicit = shape.dtype == torch.float32 and spans.num_queries <= MAX_EXPLICIT_QUERIES
        return build(spans, block_table, bounds, shape, rows, is_explicit, has_alibi)

    def _attend(
        self,
        q: Tensor,  # [n * q, H, D]
        pages: Pages,
        batch: SpanBatch | TiledBatch,
        gathered: Tensor,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [n * q, H, D]
        sizes = batch.num_spans, batch.num_queries, self.shape
        found = read_rows(pages, self._rows_of(pages), batch.context, gathered, layer)
        folded = fold(q, *sizes)  # [n * K, q * G, D]
        sinks = None if layer.sinks is None else folded_sinks(layer.sinks, *sizes)
        biases = None
        if layer.alibi_slopes is not None and batch.distances is not None:
            biases = linear_biases(layer.alibi_slopes, batch.distances, self.shape)
        if isinstance(batch, TiledBatch):
            wide = attend_in_tiles(
                folded, found, batch.mask, layer.scale, layer.logit_soft_cap, sinks, biases
            )
            return unfold(wide.to(q.dtype), *sizes)
        k, v = found.to(q.dtype).view(2, len(folded), -1, q.shape[2])
        if layer.logit_soft_cap is not None or sinks is not None or biases is not None:
            out = explicit_float32(folded, k, v, batch.mask, layer, sinks, biases)
        elif batch.is_explicit:
            out = explicit(folded, k, v, batch.mask.flatten(0, 1), layer.scale)
        else:
            out = fused(folded, k, v, batch.mask, layer.scale)
        return unfold(out, *sizes)


def _is_plain(layer: AttentionLayerParams) -> bool:
    is_whole = layer.sliding_window is None and layer.attention_chunk is None
    changes = (layer.logit_soft_cap, layer.sinks, layer.alibi_slopes)
    return is_whole and all(change is None for change in changes)
