"""Attention in plain torch: gather the context of many rows at once, then attend in one go.

It is the reference for every other backend, and what a CPU takes without compiled kernels. One
layer of a decode step is six operators: write K and V (cat, index_copy), gather (index_select), and
attend (baddbmm, softmax, bmm). Indices and masks are built once a step and shared by all layers.
The query heads of a group are folded into the query rows, so K and V are never repeated. What is
not alike goes by length into buckets (`spans`): Python loops over those, never over requests.

Why so, measured per layer in float32 with 192 tokens of context on two cores of a Zen 5 with
nothing else to do, in microseconds:

    |                                        | 16 rows, H 4, K 2, D 64 | 8 rows, H 16, K 8, D 128 |
    | gather K and V by rows of D numbers    |                      40 |                      156 |
    | gather whole blocks, heads innermost   |                      33 |                      109 |
    | baddbmm, softmax, bmm                  |                      60 |                      179 |
    | fused SDPA on whole blocks, folded     |                     113 |                      302 |
    | fused SDPA on whole blocks, enable_gqa |                      94 |                      272 |
    | math SDPA on whole blocks              |                     292 |                    5,990 |

Whole blocks are gathered quicker, but leave K and V in an order that matrix products are slow in,
and bring along the unwritten end of the last block. From some dozen queries a row on the fused
kernel is as quick as our own products and needs less memory; it also keeps the scores of bfloat16
and float16 in float32, so it serves those always.

A batch gathers 8 MiB at most on a CPU, so that the copy is still in its caches when it is read. On
one core of a busy machine 12 MiB in one batch took twice as long as in two, and 100 MiB three times
as long as in pieces.

In batch-invariant mode all of this gives way to `tiled_batch`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    StepLayout,
)
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.shared.kv_layout import (
    DTYPES,
    Pages,
    kind_of,
    split_pages,
    view_pages,
)
from quire_attention_backends.torch.held_context import HeldContext, Tenancy
from quire_attention_backends.torch.kept_rows import read_rows, write_rows
from quire_attention_backends.torch.query_order import QueryOrder
from quire_attention_backends.torch.span_batch import SpanBatch, build
from quire_attention_backends.torch.span_products import (
    explicit,
    fold,
    folded_sinks,
    fused,
    spelled_out,
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

    from quire.interfaces.kv_cache import KVCacheSpec

CALL_COST_BYTES = 2**20  # of K and V, gathered in the time that one more batch costs
MAX_GATHERED_BYTES = {"cpu": 2**23, "cuda": 2**28}  # of K and V in a batch
MAX_EXPLICIT_QUERIES = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """The batches of a step for the layers that see equally far, and where they gather to."""

    order: QueryOrder
    batches: list[SpanBatch | TiledBatch]
    gathered: Tensor  # [rows of the largest batch, D]


@dataclass(slots=True)
class StepMetadata:
    """What all layers of a step share.

    Attributes:
        step: The step.
        tenancy: Whose context is held from the step before, if it is.
        written: `[2 * T * K]` int64, rows of the cache: all of K, then all of V; found by the first
            layer, as `readings` are for each window and chunk, and `varlens` for each window.
    """

    step: StepLayout
    tenancy: Tenancy | None
    written: Tensor | None = None
    readings: dict[tuple[int | None, int | None], Reading] = field(default_factory=dict)
    varlens: dict[int | None, VarlenBatch | None] = field(default_factory=dict)


class TorchSDPABackend(AttentionBackend):
    """Attention over a paged KV cache of the layout [B, 2, K, S, D].

    Args:
        shape: What it is built for.
        varlen: What attends in one call where it can; None: what this torch and this GPU have.

    Raises:
        RefusedError: Batch-invariant mode is asked for, and this machine cannot keep its promise.
    """

    def __init__(self, shape: AttentionShape, varlen: VarlenAttention | None = None) -> None:
        super().__init__(shape)
        if shape.batch_invariant:
            check_rows(shape)
        self._varlen = varlen or VarlenAttention.here(shape)
        self._held = HeldContext(shape)
        self._rows: dict[int, CacheRows] = {}  # by the distance of two blocks

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return what a batch gathers on a GPU, its indices and widened copies; not its scores."""
        if shape.device.type == "cpu":
            return 0  # a few MiB
        numbers = 2 * shape.num_kv_heads * shape.head_dim  # of a token
        kept_bytes, index_bytes = DTYPES[shape.kv_dtype].itemsize, torch.int64.itemsize
        max_len = shape.max_blocks_per_request * shape.block_size
        num_spans = shape.max_num_seqs + shape.max_num_batched_tokens // MAX_QUERIES
        num_fitting = MAX_GATHERED_BYTES[shape.device.type] // (numbers * kept_bytes)
        num_tokens = max(max_len, min(num_spans * max_len, num_fitting))
        if kind_of(shape.kv_dtype) != "plain":
            kept_bytes += torch.float32.itemsize
        if shape.kv_dtype != str(shape.dtype).removeprefix("torch."):
            kept_bytes += shape.dtype.itemsize
        return num_tokens * numbers * kept_bytes + num_tokens * 2 * shape.num_kv_heads * index_bytes

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, 2, K, S, D]; int8 pages as uint8 [B, page bytes].

        Raises:
            RefusedError: The pages do not hold K and V of whole heads, of a type it knows.
        """
        return view_pages(raw, spec, num_blocks, "torch_sdpa")

    def prepare(self, step: StepLayout) -> StepMetadata:
        """See whether the context is held; the rest is found by the first layer that needs it."""
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
        if metadata.written is None:
            metadata.written = rows.written(metadata.step.slot_mapping)
        new = write_rows(pages, rows, metadata.written, k, v, layer)
        tenancy = metadata.tenancy
        if tenancy is not None and _is_plain(layer):
            cache = rows.flat(pages.data)
            keys, values = self._held.read(tenancy, cache, rows, new)
            mask = tenancy.mask[:, :, : tenancy.length]
            folded = q.reshape(len(mask), -1, self.shape.head_dim)  # [n * K, G, D]
            return explicit(folded, keys, values, mask, layer.scale).view_as(q)
        varlen = self._varlen
        if varlen is not None and varlen.serves(self.shape, layer):
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
        """Return what torch's kernel is asked; None: it would gather too much."""
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
        """Return all keys and values of a batch: the step's own, or those of the cache."""
        if batch.context is None:
            return k, v
        gathered = pages.data.new_empty(len(batch.context), k.shape[2])
        found = read_rows(pages, self._rows_of(pages), batch.context, gathered, layer)
        keys, values = found.to(k.dtype).view(2, batch.num_keys, -1, k.shape[2])
        return keys, values

    def _attend_in_batches(
        self, q: Tensor, pages: Pages, metadata: StepMetadata, layer: AttentionLayerParams
    ) -> Tensor:  # [T, H, D]
        key = (layer.sliding_window, layer.attention_chunk)
        reading = metadata.readings.get(key)
        if reading is None:
            reading = self._reading(metadata.step, AttentionBounds(*key), pages)
            metadata.readings[key] = reading
        if not reading.batches:  # a step of padding alone
            return torch.empty_like(q)
        answers = [
            self._attend(some, pages, batch, reading.gathered, layer)
            for some, batch in zip(reading.order.of_each_batch(q), reading.batches, strict=True)
        ]
        return reading.order.of_the_step(answers)

    def _token_bytes(self, pages: Pages) -> int:
        return 2 * self.shape.num_kv_heads * self.shape.head_dim * pages.data.itemsize

    def _reading(self, step: StepLayout, bounds: AttentionBounds, pages: Pages) -> Reading:
        token_bytes = self._token_bytes(pages)
        max_bytes = MAX_GATHERED_BYTES[self.shape.device.type]
        limits = CALL_COST_BYTES / token_bytes, max_bytes // token_bytes
        tile = TILE if self.shape.batch_invariant else 1
        spans = cut(step.query_lens_host, step.seq_lens_host, bounds, tile)
        grouped = batches(spans, *limits)
        rows = self._rows_of(pages)
        built = [self._build(some, step.block_table, bounds, rows) for some in grouped]
        num_rows = max((len(batch.context) for batch in built), default=0)
        order = QueryOrder.of(grouped, len(step.slot_mapping), step.block_table.device)
        return Reading(order, built, pages.data.new_empty(num_rows, self.shape.head_dim))

    def _build(
        self, spans: Spans, block_table: Tensor, bounds: AttentionBounds, rows: CacheRows
    ) -> SpanBatch | TiledBatch:
        shape = self.shape
        if shape.batch_invariant:
            return build_tiled(spans, block_table, bounds, shape, rows)
        is_explicit = shape.dtype == torch.float32 and spans.num_queries <= MAX_EXPLICIT_QUERIES
        return build(spans, block_table, bounds, shape, rows, is_explicit)

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
        if isinstance(batch, TiledBatch):
            wide = attend_in_tiles(
                folded, found, batch.mask, layer.scale, layer.logit_soft_cap, sinks
            )
            return unfold(wide.to(q.dtype), *sizes)
        k, v = found.to(q.dtype).view(2, len(folded), -1, q.shape[2])
        if layer.logit_soft_cap is not None or sinks is not None:
            out = spelled_out(folded, k, v, batch.mask, layer, sinks)
        elif batch.is_explicit:
            out = explicit(folded, k, v, batch.mask.flatten(0, 1), layer.scale)
        else:
            out = fused(folded, k, v, batch.mask, layer.scale)
        return unfold(out, *sizes)


def _is_plain(layer: AttentionLayerParams) -> bool:
    is_whole = layer.sliding_window is None and layer.attention_chunk is None
    return is_whole and layer.logit_soft_cap is None and layer.sinks is None
