"""Attention with fused norm and rotation of q and k, in plain torch, as defined by `RotaryStep`."""

from typing import Any

import torch
from torch import Tensor

from quire.interfaces.attention import AttentionLayerParams, RotaryStep
from quire.testing.model.dense_attention import DenseAttention


class RotatingAttention(DenseAttention):
    """Dense attention for one request; computes in float32 and returns the dtype of q."""

    fuses_rotary = True

    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q.float(), k.float(), v.float(), kv_cache, metadata, layer)
        return out.to(q.dtype)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2K, D]
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: Any,
        layer: AttentionLayerParams,
    ) -> Tensor:
        heads = self.shape.num_heads
        qk, v = qkv[:, : heads + self.shape.num_kv_heads], qkv[:, -self.shape.num_kv_heads :]
        turned = rotated(normed(qk.float(), rotary), rotary).to(qkv.dtype)
        return self.forward(turned[:, :heads], turned[:, heads:], v, kv_cache, metadata, layer)


def normed(qk: Tensor, rotary: RotaryStep) -> Tensor:
    if rotary.norm_weight is None:
        return qk
    mean_square = qk.pow(2).mean(-1, keepdim=True)
    return qk * (mean_square + rotary.norm_eps).rsqrt() * rotary.norm_weight.float()


def rotated(qk: Tensor, rotary: RotaryStep) -> Tensor:
    cos, sin = rotary.table[rotary.positions].float().unsqueeze(2).unbind(1)  # [T, 1, D] each
    first, second = qk.chunk(2, -1)
    return qk * cos + torch.cat((second, first), -1) * sin
