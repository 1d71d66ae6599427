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
from quire_attention_backends.held_context import HeldContext, Tenancy
from quire_attention_backends.span_batch import SpanBatch, build, first_rows
from quire_attention_backends.spans import batches

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

CALL_COST_BYTES = 2**20  # of K and V, gathered in the time that one more batch costs
MAX_GATHERED_BYTES = {"cpu": 2**23, "cuda": 2**28}  # of K and V in a batch
MAX_EXPLICIT_QUERIES = 16
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Windowed:
    """The batches of a step for the layers with one window, and where they gather to."""

    batches: list[SpanBatch]
    gathered: Tensor  # [rows of the largest batch, D]


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """What all layers of a step share."""

    step: StepLayout
    written: Tensor  # [2 * T * K] int64, rows of the cache: all of K, then all of V
    tenancy: Tenancy | None  # whose context is held from the step before, if it is
    by_window: dict[int | None, Windowed] = field(default_factory=dict)


class TorchSDPABackend(AttentionBackend):
    """Attention over a paged KV cache of the layout [B, 2, K, S, D]."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        heads = torch.arange(2 * shape.num_kv_heads, device=shape.device)
        self._head_rows = heads.view(2, -1) * shape.block_size  # [2, K]
        self._held = HeldContext(shape, self._head_rows)

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, 2, K, S, D].

        Raises:
            RefusedError: A page is not K and V of whole heads, or of another element type.
        """
        dtype = DTYPES.get(spec.kv_dtype)
        if dtype is None:
            raise RefusedError(f"torch_sdpa cannot read KV of type {spec.kv_dtype}")
        head_bytes = 2 * spec.block_size * spec.layer.head_dim * dtype.itemsize
        num_kv_heads, rest = divmod(spec.page_bytes, head_bytes)
        if rest or not num_kv_heads:
            raise RefusedError(
                f"torch_sdpa cannot use the KV cache of {spec.layer.name}: its pages have "
                f"{spec.page_bytes} bytes, K and V of one head have {head_bytes}"
            )
        return raw.view(dtype).view(
            num_blocks, 2, num_kv_heads, spec.block_size, spec.layer.head_dim
        )

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Find where new K and V go; what is read is found for the first layer of each window."""
        slots, block_size = step.slot_mapping, self.shape.block_size
        rows = first_rows(slots // block_size, slots % block_size, self.shape)  # [T]
        written = rows[None, :, None] + self._head_rows[:, None, :]  # [2, T, K]
        return StepMetadata(step, written.view(-1), self._held.begin(step))

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
        cache = kv_cache.view(-1, head_dim)
        new = torch.cat((k, v)).view(-1, head_dim)  # [2 * T * K, D]
        cache.index_copy_(0, metadata.written, new.to(cache.dtype))
        tenancy = metadata.tenancy
        if tenancy is not None and _is_plain(layer) and cache.dtype == q.dtype:
            keys, values = self._held.read(tenancy, cache, new)
            mask = tenancy.mask[:, :, : tenancy.length]
            folded = q.reshape(len(mask), -1, head_dim)  # [n * K, G, D]
            return _explicit(folded, keys, values, mask, layer.scale).view_as(q)
        plan = metadata.by_window.get(layer.sliding_window)
        if plan is None:
            plan = self._plan(metadata.step, layer.sliding_window, cache)
            metadata.by_window[layer.sliding_window] = plan
        out = None
        for batch in plan.batches:
            if batch.tokens is None:
                return self._attend(q, cache, batch, plan.gathered, layer)
            out = torch.zeros_like(q) if out is None else out
            some = self._attend(q[batch.tokens], cache, batch, plan.gathered, layer)
            out.index_copy_(0, batch.tokens, some)
        return torch.zeros_like(q) if out is None else out

    def _plan(self, step: StepLayout, window: int | None, cache: Tensor) -> Windowed:
        shape = self.shape
        token_bytes = 2 * shape.num_kv_heads * shape.head_dim * cache.itemsize
        max_bytes = MAX_GATHERED_BYTES[shape.device.type]
        limits = CALL_COST_BYTES // token_bytes, max_bytes // token_bytes
        built = [
            build(
                spans,
                step.block_table,
                len(step.slot_mapping),
                window,
                shape,
                self._head_rows,
                shape.dtype == torch.float32 and spans[0].num_queries <= MAX_EXPLICIT_QUERIES,
            )
            for spans in batches(step.query_lens_host, step.seq_lens_host, *limits)
        ]
        num_rows = max((len(batch.context) for batch in built), default=0)
        return Windowed(built, cache.new_empty(num_rows, shape.head_dim))

    def _attend(
        self,
        q: Tensor,  # [n * q, H, D]
        cache: Tensor,  # [B * 2 * K * S, D]
        batch: SpanBatch,
        gathered: Tensor,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [n * q, H, D]
        rows = torch.index_select(cache, 0, batch.context, out=gathered[: len(batch.context)])
        k, v = rows.to(q.dtype).view(2, batch.num_spans * self.shape.num_kv_heads, -1, q.shape[2])
        folded = self._fold(q, batch)  # [n * K, q * G, D]
        if layer.logit_soft_cap is not None:
            out = _capped(folded, k, v, batch.mask, layer.scale, layer.logit_soft_cap)
        elif batch.is_explicit:
            out = _explicit(folded, k, v, batch.mask.flatten(0, 1), layer.scale)
        else:
            out = _fused(folded, k, v, batch.mask, layer.scale)
        return self._unfold(out, batch)

    def _fold(self, q: Tensor, batch: SpanBatch) -> Tensor:  # [n * q, H, D] -> [n * K, q * G, D]
        shape, group = self.shape, self.shape.num_heads // self.shape.num_kv_heads
        if batch.num_queries == 1:
            return q.reshape(-1, group, shape.head_dim)
        heads = q.view(batch.num_spans, batch.num_queries, shape.num_kv_heads, -1, shape.head_dim)
        rows = heads.transpose(1, 2)  # [n, K, q, G, D]
        return rows.reshape(-1, batch.num_queries * group, shape.head_dim)

    def _unfold(self, out: Tensor, batch: SpanBatch) -> Tensor:  # the way back
        shape = self.shape
        if batch.num_queries == 1:
            return out.reshape(-1, shape.num_heads, shape.head_dim)
        rows = out.view(batch.num_spans, shape.num_kv_heads, batch.num_queries, -1, shape.head_dim)
        return rows.transpose(1, 2).reshape(-1, shape.num_heads, shape.head_dim)


def _is_plain(layer: AttentionLayerParams) -> bool:
    return layer.sliding_window is None and layer.logit_soft_cap is None


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
