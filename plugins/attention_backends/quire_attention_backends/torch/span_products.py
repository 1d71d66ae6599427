"""Matrix products of attention over n spans, with a group's query heads folded into the query rows.

So K and V are never repeated. Masks are 0 or -inf and are added to the scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from quire.interfaces.attention import AttentionLayerParams, AttentionShape

if TYPE_CHECKING:
    from torch import Tensor


def fold(
    q: Tensor, num_spans: int, num_queries: int, shape: AttentionShape
) -> Tensor:  # [n * q, H, D] -> [n * K, q * G, D]
    """Move the query heads of a key head into its rows, G rows for each query."""
    group = shape.num_heads // shape.num_kv_heads
    if num_queries == 1:
        return q.reshape(-1, group, shape.head_dim)
    heads = q.view(num_spans, num_queries, shape.num_kv_heads, -1, shape.head_dim)
    rows = heads.transpose(1, 2)  # [n, K, q, G, D]
    return rows.reshape(-1, num_queries * group, shape.head_dim)


def unfold(out: Tensor, num_spans: int, num_queries: int, shape: AttentionShape) -> Tensor:
    """Undo `fold`."""
    if num_queries == 1:
        return out.reshape(-1, shape.num_heads, shape.head_dim)
    rows = out.view(num_spans, shape.num_kv_heads, num_queries, -1, shape.head_dim)
    return rows.transpose(1, 2).reshape(-1, shape.num_heads, shape.head_dim)


def folded_sinks(
    sinks: Tensor, num_spans: int, num_queries: int, shape: AttentionShape
) -> Tensor:  # [H] -> [n * K, q * G, 1]
    """Return the sink of each folded row."""
    heads = sinks.float().view(1, shape.num_kv_heads, 1, -1)
    rows = heads.expand(num_spans, -1, num_queries, -1)  # [n, K, q, G]
    return rows.reshape(num_spans * shape.num_kv_heads, -1, 1)


def linear_biases(
    slopes: Tensor,  # [H] float32
    distances: Tensor,  # [n, q, L] float32
    shape: AttentionShape,
) -> Tensor:  # [n, K, q * G, L]
    """Return the bias of each folded row's scores (ALiBi)."""
    heads = slopes.view(1, shape.num_kv_heads, 1, -1, 1)
    biases = heads * distances[:, None, :, None]  # [n, K, q, G, L]
    return biases.flatten(2, 3)


def explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attend by explicit matrix products, in the dtype of the inputs."""
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=scale)
    return torch.bmm(scores.softmax(-1), v)


def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attend by PyTorch's fused kernel, which keeps scores in float32."""
    q, k, v = (x.view(len(mask), -1, *x.shape[1:]) for x in (q, k, v))  # [n, K, ...]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).flatten(0, 1)


def explicit_float32(
    q: Tensor,  # [n * K, q * G, D]
    k: Tensor,  # [n * K, L, D]
    v: Tensor,
    mask: Tensor,  # [n, 1 or K, 1 or q * G, L]
    layer: AttentionLayerParams,
    sinks: Tensor | None,  # [n * K, q * G, 1]
    biases: Tensor | None,  # [n, K, q * G, L]
) -> Tensor:
    """Attend with capped scores, sinks or linear biases by explicit products in float32."""
    scores = torch.bmm(q.float(), k.float().transpose(1, 2))
    cap = layer.logit_soft_cap
    if cap is None:
        scores.mul_(layer.scale)
    else:
        scores.mul_(layer.scale / cap).tanh_().mul_(cap)
    by_span = scores.view(len(mask), -1, *scores.shape[1:]).add_(mask)
    if biases is not None:
        by_span.add_(biases)
    if sinks is None:
        weights = scores.softmax(-1)
    else:
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    return torch.bmm(weights, v.float()).to(q.dtype)
