"""Latent attention in plain PyTorch: gather rows, one product for scores, one for outputs.

It is the reference for the other MLA backends and the default on a CPU. A step is cut into spans as
in `torch_sdpa`; the spans of a batch are padded to its longest context. Scores and sums are float32
for every cache type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.attention import StepLayout
from quire_attention_backends.mla.mla_pages import LatentRowsBackend
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.torch.query_order import QueryOrder
from quire_attention_backends.torch.span_batch import span_keys
from quire_attention_backends.torch.spans import MAX_QUERIES, Spans, batches, cut

if TYPE_CHECKING:
    from torch import Tensor

CALL_COST_BYTES = 2**20  # bytes of rows that are gathered in the time that one more batch costs
MAX_GATHERED_BYTES = 2**26  # bytes of rows per batch
MAX_SCORES_BYTES = 2**27  # per batch
ELEMENT_BYTES = torch.float32.itemsize


@dataclass(frozen=True, slots=True)
class RowBatch:
    """n spans of q queries each, padded to L tokens of context.

    Attributes:
        context: `[n, L]` int64, rows of the cache, each visible to a query of the span.
        is_hidden: `[n, q, L]`, True where a row is hidden from a query.
    """

    context: Tensor
    is_hidden: Tensor


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Metadata of a step, shared by all layers."""

    step: StepLayout
    order: QueryOrder
    batches: list[RowBatch]


class TorchMLABackend(LatentRowsBackend):
    """Latent attention over a paged cache of the layout [B, S, C + P]."""

    name: ClassVar[str] = "torch_mla"

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Build the gather indices and masks of the batches of spans."""
        row_bytes = self.shape.head_dim * ELEMENT_BYTES
        max_queries = min(step.max_query_len, MAX_QUERIES)
        score_bytes = max_queries * self.shape.num_heads * ELEMENT_BYTES  # per token of context
        max_tokens = min(MAX_GATHERED_BYTES // row_bytes, MAX_SCORES_BYTES // score_bytes)
        call_cost_tokens = CALL_COST_BYTES / row_bytes
        spans = cut(step.query_lens_host, step.seq_lens_host, AttentionBounds())
        grouped = batches(spans, call_cost_tokens, max_tokens)
        order = QueryOrder.of(grouped, len(step.slot_mapping), step.block_table.device)
        return StepMetadata(step, order, [self._batch(each, step) for each in grouped])

    def forward(
        self,
        q_latent: Tensor,  # [T, H, C]
        q_rope: Tensor,  # [T, H, P]
        latent: Tensor,  # [T, C]
        k_rope: Tensor,  # [T, P]
        kv_cache: Tensor,  # [B, S, C + P]
        metadata: StepMetadata,
        scale: float,
    ) -> Tensor:  # [T, H, C]
        """Write the rows to their slots, then attend."""
        slots, latent_dim = metadata.step.slot_mapping, q_latent.shape[2]
        new = torch.cat((latent, k_rope), 1).to(kv_cache.dtype)
        kv_cache[slots // self.shape.block_size, slots % self.shape.block_size] = new
        q = torch.cat((q_latent, q_rope), 2)  # [T, H, C + P]
        if not metadata.batches:  # a step with only padding
            return torch.empty_like(q_latent)
        outputs = [
            _attend(some, self._rows(kv_cache, batch.context), batch.is_hidden, scale, latent_dim)
            for some, batch in zip(metadata.order.split_queries(q), metadata.batches, strict=True)
        ]
        return metadata.order.join_outputs(outputs).to(q_latent.dtype)

    def _batch(self, spans: Spans, step: StepLayout) -> RowBatch:
        size = self.shape.block_size
        found = span_keys(spans, step.block_table, size, AttentionBounds())
        block_ids = found.tables.gather(1, found.read // size).long()
        return RowBatch(block_ids * size + found.read % size, found.is_hidden)

    def _rows(self, kv_cache: Tensor, context: Tensor) -> Tensor:  # [n, L, C + P] float32
        size = self.shape.block_size
        return kv_cache[context // size, context % size].float()


def _attend(
    q: Tensor,  # [n * q, H, C + P]
    rows: Tensor,  # [n, L, C + P]
    is_hidden: Tensor,  # [n, q, L]
    scale: float,
    latent_dim: int,
) -> Tensor:  # [n * q, H, C]
    num_spans, size, length = is_hidden.shape
    folded = q.float().reshape(num_spans, -1, q.shape[2])  # [n, q * H, C + P]
    scores = torch.bmm(folded, rows.transpose(1, 2)).mul_(scale)
    by_head = scores.view(num_spans, size, -1, length)
    by_head.masked_fill_(is_hidden.unsqueeze(2), -math.inf)
    out = torch.bmm(scores.softmax(-1), rows[:, :, :latent_dim])  # [n, q * H, C]
    return out.view(-1, q.shape[1], latent_dim)
