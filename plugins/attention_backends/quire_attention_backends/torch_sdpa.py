"""Attention in plain torch: gather the context of many rows at once, then attend in one go.

It is the reference for every other backend, and the CPU's default. One layer of a decode step is
six operators: write K and V (cat, index_copy), gather (index_select), and attend (baddbmm, softmax,
bmm). Indices and masks are built once a step and shared by all layers. The query heads of a group
are folded into the query rows, so K and V are never repeated.

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
from torch.nn.functional import scaled_dot_product_attention

from quire.errors import RefusedError
from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    StepLayout,
)
from quire_attention_backends.cache_rows import CacheRows
from quire_attention_backends.held_context import HeldContext, Tenancy
from quire_attention_backends.reach import Reach
from quire_attention_backends.span_batch import SpanBatch, build
from quire_attention_backends.spans import Span, batches
from quire_attention_backends.tiled_batch import (
    TiledBatch,
    attend_in_tiles,
    build_tiled,
    check_rows,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

CALL_COST_BYTES = 2**20  # of K and V, gathered in the time that one more batch costs
MAX_GATHERED_BYTES = {"cpu": 2**23, "cuda": 2**28}  # of K and V in a batch
MAX_EXPLICIT_QUERIES = 16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Reading:
    """The batches of a step for the layers that see equally far, and where they gather to."""

    batches: list[SpanBatch | TiledBatch]
    gathered: Tensor  # [rows of the largest batch, D]


@dataclass(slots=True)
class StepMetadata:
    """What all layers of a step share.

    Attributes:
        step: The step.
        tenancy: Whose context is held from the step before, if it is.
        written: `[2 * T * K]` int64, rows of the cache: all of K, then all of V; found by the first
            layer, as `readings` are for each window and chunk.
    """

    step: StepLayout
    tenancy: Tenancy | None
    written: Tensor | None = None
    readings: dict[tuple[int | None, int | None], Reading] = field(default_factory=dict)


class TorchSDPABackend(AttentionBackend):
    """Attention over a paged KV cache of the layout [B, 2, K, S, D].

    Raises:
        RefusedError: Batch-invariant mode is asked for, and this machine cannot keep its promise.
    """

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        if shape.batch_invariant:
            check_rows(shape)
        self._held = HeldContext(shape)
        self._rows: dict[int, CacheRows] = {}  # by the distance of two blocks

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, 2, K, S, D].

        Raises:
            RefusedError: A page is not K and V of whole heads, or of another element type; or the
                padding between pages is not whole rows.
        """
        dtype = DTYPES.get(spec.kv_dtype)
        if dtype is None:
            raise RefusedError(f"torch_sdpa cannot read KV of type {spec.kv_dtype}")
        row_bytes = spec.layer.head_dim * dtype.itemsize
        num_kv_heads, rest = divmod(spec.page_bytes, 2 * spec.block_size * row_bytes)
        pages = raw.view(num_blocks, spec.page_bytes) if raw.dim() == 1 else raw
        if rest or not num_kv_heads or (num_blocks > 1 and pages.stride(0) % row_bytes):
            raise RefusedError(
                f"torch_sdpa cannot use the KV cache of {spec.layer.name}: its pages have "
                f"{spec.page_bytes} bytes every {pages.stride(0)}, K and V of one head have "
                f"{2 * spec.block_size * row_bytes}, one of its rows {row_bytes}"
            )
        sizes = (num_blocks, 2, num_kv_heads, spec.block_size, spec.layer.head_dim)
        return pages.view(dtype).view(sizes)

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
        """Write `k` and `v` to their slots, then attend; rows of padding come out as zeros."""
        head_dim = self.shape.head_dim
        rows = self._rows_of(kv_cache)
        cache = rows.flat(kv_cache)
        new = torch.cat((k, v)).view(-1, head_dim)  # [2 * T * K, D]
        if metadata.written is None:
            metadata.written = rows.written(metadata.step.slot_mapping)
        cache.index_copy_(0, metadata.written, new.to(cache.dtype))
        tenancy = metadata.tenancy
        if tenancy is not None and _is_plain(layer) and cache.dtype == q.dtype:
            keys, values = self._held.read(tenancy, cache, rows, new)
            mask = tenancy.mask[:, :, : tenancy.length]
            folded = q.reshape(len(mask), -1, head_dim)  # [n * K, G, D]
            return _explicit(folded, keys, values, mask, layer.scale).view_as(q)
        key = (layer.sliding_window, layer.attention_chunk)
        reading = metadata.readings.get(key)
        if reading is None:
            reading = self._reading(metadata.step, Reach(*key), cache, rows)
            metadata.readings[key] = reading
        out = None
        for batch in reading.batches:
            if batch.tokens is None:
                return self._attend(q, cache, batch, reading.gathered, layer)
            out = torch.zeros_like(q) if out is None else out
            some = self._attend(q[batch.tokens], cache, batch, reading.gathered, layer)
            out.index_copy_(0, batch.tokens, some)
        return torch.zeros_like(q) if out is None else out

    def _rows_of(self, kv_cache: Tensor) -> CacheRows:
        distance = kv_cache.stride(0)
        if distance not in self._rows:
            self._rows[distance] = CacheRows.of(kv_cache, self.shape)
        return self._rows[distance]

    def _reading(self, step: StepLayout, reach: Reach, cache: Tensor, rows: CacheRows) -> Reading:
        shape = self.shape
        token_bytes = 2 * shape.num_kv_heads * shape.head_dim * cache.itemsize
        max_bytes = MAX_GATHERED_BYTES[shape.device.type]
        limits = CALL_COST_BYTES // token_bytes, max_bytes // token_bytes
        built = [
            self._build(spans, step, reach, rows)
            for spans in batches(step.query_lens_host, step.seq_lens_host, *limits)
        ]
        num_rows = max((len(batch.context) for batch in built), default=0)
        return Reading(built, cache.new_empty(num_rows, shape.head_dim))

    def _build(
        self, spans: list[Span], step: StepLayout, reach: Reach, rows: CacheRows
    ) -> SpanBatch | TiledBatch:
        shape, num_tokens = self.shape, len(step.slot_mapping)
        if shape.batch_invariant:
            return build_tiled(spans, step.block_table, num_tokens, reach, shape, rows)
        is_explicit = shape.dtype == torch.float32 and spans[0].num_queries <= MAX_EXPLICIT_QUERIES
        return build(spans, step.block_table, num_tokens, reach, shape, rows, is_explicit)

    def _attend(
        self,
        q: Tensor,  # [n * q, H, D]
        cache: Tensor,  # [B * 2 * K * S, D]
        batch: SpanBatch | TiledBatch,
        gathered: Tensor,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [n * q, H, D]
        rows = torch.index_select(cache, 0, batch.context, out=gathered[: len(batch.context)])
        folded = self._fold(q, batch)  # [n * K, q * G, D]
        if isinstance(batch, TiledBatch):
            wide = attend_in_tiles(folded, rows, batch.mask, layer.scale, layer.logit_soft_cap)
            return self._unfold(wide.to(q.dtype), batch)
        k, v = rows.to(q.dtype).view(2, batch.num_spans * self.shape.num_kv_heads, -1, q.shape[2])
        if layer.logit_soft_cap is not None:
            out = _capped(folded, k, v, batch.mask, layer.scale, layer.logit_soft_cap)
        elif batch.is_explicit:
            out = _explicit(folded, k, v, batch.mask.flatten(0, 1), layer.scale)
        else:
            out = _fused(folded, k, v, batch.mask, layer.scale)
        return self._unfold(out, batch)

    def _fold(
        self, q: Tensor, batch: SpanBatch | TiledBatch
    ) -> Tensor:  # [n * q, H, D] -> [n * K, q * G, D]
        shape, group = self.shape, self.shape.num_heads // self.shape.num_kv_heads
        if batch.num_queries == 1:
            return q.reshape(-1, group, shape.head_dim)
        heads = q.view(batch.num_spans, batch.num_queries, shape.num_kv_heads, -1, shape.head_dim)
        rows = heads.transpose(1, 2)  # [n, K, q, G, D]
        return rows.reshape(-1, batch.num_queries * group, shape.head_dim)

    def _unfold(self, out: Tensor, batch: SpanBatch | TiledBatch) -> Tensor:  # the way back
        shape = self.shape
        if batch.num_queries == 1:
            return out.reshape(-1, shape.num_heads, shape.head_dim)
        rows = out.view(batch.num_spans, shape.num_kv_heads, batch.num_queries, -1, shape.head_dim)
        return rows.transpose(1, 2).reshape(-1, shape.num_heads, shape.head_dim)


def _is_plain(layer: AttentionLayerParams) -> bool:
    is_whole = layer.sliding_window is None and layer.attention_chunk is None
    return is_whole and layer.logit_soft_cap is None


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), v)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    q, k, v = (x.view(len(mask), -1, *x.shape[1:]) for x in (q, k, v))  # [n, K, ...]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).flatten(0, 1)


def _capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float, cap: float) -> Tensor:
    """Attend with scores squeezed into (-cap, cap); in float32, because none fuses that."""
    scores = torch.bmm(q.float(), k.float().transpose(1, 2)).mul_(scale / cap).tanh_().mul_(cap)
    scores.view(len(mask), -1, *scores.shape[1:]).add_(mask)
    return torch.bmm(scores.softmax(-1), v.float()).to(q.dtype)
