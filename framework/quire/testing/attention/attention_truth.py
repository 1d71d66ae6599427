"""Reference attention in float64, one head and one query at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionLayerParams
from quire.testing.kv_backend.pool_sizes import DTYPES

KV_DTYPES = (*DTYPES, "float8_e4m3fn", "int8")
FLOAT8_MAX = 448.0
INT8_MAX = 127.0


@dataclass(frozen=True, slots=True)
class RotaryReference:
    """Norm and rotary embedding of `forward_rotary`, applied before K is stored.

    Attributes:
        table: Cosines and sines, `[P, 2, D]`; the sines of the first D / 2 elements are negated.
        norm_weight: Weight of the RMS norm, `[H + K, D]`; None for no norm.
        norm_eps: Epsilon of the RMS norm.
    """

    table: Tensor
    norm_weight: Tensor | None
    norm_eps: float = 1e-3

    def of(self, heads: Tensor, first_head: int) -> Tensor:  # [L, n, D] -> float64
        """Return heads of a request with norm and rotary embedding applied, from position 0.

        Args:
            heads: Projected heads of all tokens.
            first_head: Index of the first of them in `norm_weight`.
        """
        heads = heads.double()
        if self.norm_weight is not None:
            mean_square = heads.square().mean(-1, keepdim=True)
            weight = self.norm_weight[first_head : first_head + heads.shape[1]]
            heads = heads / (mean_square + self.norm_eps).sqrt() * weight.double()
        cos, sin = self.table[: len(heads)].double().chunk(2, 1)  # [L, 1, D] each
        return heads * cos + heads.roll(heads.shape[-1] // 2, -1) * sin


def kv_round_trip(x: Tensor, kv_dtype: str, scale: float) -> Tensor:  # [L, K, D]
    """Return values in float64 as they are read back from a KV cache.

    Args:
        x: Values to store.
        kv_dtype: Dtype of the KV cache.
        scale: Scale of the layer, for a float8 cache. An int8 cache has a scale for each row.
    """
    if kv_dtype == "float8_e4m3fn":
        scaled = (x.float() / scale).clamp(-FLOAT8_MAX, FLOAT8_MAX)
        return scaled.to(torch.float8_e4m3fn).double() * scale
    if kv_dtype == "int8":
        scales = x.float().abs().amax(-1, keepdim=True) / INT8_MAX
        codes = (x.float() / torch.where(scales > 0, scales, 1.0)).round()
        return codes.double() * scales.double()
    return x.to(DTYPES[kv_dtype]).double()


def reference_attention(
    q: Tensor,  # [n, H, D], the last n tokens of the context
    k: Tensor,  # [L, K, D]
    v: Tensor,  # [L, K, D]
    layer: AttentionLayerParams,
) -> Tensor:  # [n, H, D]
    """Return attention by its definition, over K and V as given."""
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for row in range(len(q)):
        end = len(k) - len(q) + row + 1
        start = first_seen(end - 1, layer)
        for head in range(q.shape[1]):
            keys, values = k[start:end, head // group], v[start:end, head // group]
            scores = keys @ q[row, head] * layer.scale
            if layer.logit_soft_cap is not None:
                scores = layer.logit_soft_cap * torch.tanh(scores / layer.logit_soft_cap)
            if layer.alibi_slopes is not None:
                distances = torch.arange(start, end).to(scores) - (end - 1)
                scores = scores + layer.alibi_slopes[head].to(scores) * distances
            if layer.sinks is not None:  # one more logit, without a value
                scores = torch.cat((scores, layer.sinks[head : head + 1].to(scores)))
            out[row, head] = scores.softmax(0)[: len(values)] @ values
    return out


def first_seen(position: int, layer: AttentionLayerParams) -> int:
    """Return the first position that the query at `position` sees."""
    first = 0 if layer.sliding_window is None else max(0, position + 1 - layer.sliding_window)
    chunk = layer.attention_chunk
    return first if chunk is None else max(first, position // chunk * chunk)
