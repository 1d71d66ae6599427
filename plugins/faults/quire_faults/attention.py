"""Attention in plain torch, one request at a time, that injects faults into the forward pass.

It is slow, and right without faults: it passes the conformance kit.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    StepLayout,
)
from quire.interfaces.kv_cache import KVCacheSpec
from quire_faults.injection import injection

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class FaultyAttention(AttentionBackend):
    """Attention over a paged KV cache of the layout [B, 2, S, K, D]."""

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, 2, S, K, D]."""
        elements = raw.view(DTYPES[spec.kv_dtype])
        return elements.view(num_blocks, 2, spec.block_size, -1, spec.layer.head_dim)

    def prepare(self, step: StepLayout) -> StepLayout:
        """Return the step itself."""
        injection().reach("attention.prepare")
        return step

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,  # [B, 2, S, K, D]
        metadata: Any,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write K and V, then attend the queries of each request to its own context."""
        fault = injection().reach("attention.forward")
        step: StepLayout = metadata
        self._write(k, v, kv_cache, step)
        out = torch.zeros_like(q)
        start = 0
        for request, length in enumerate(step.query_lens_host):
            rows = slice(start, start + length)
            out[rows] = self._attend(q[rows], kv_cache, step, request, layer)
            start += length
        return out.fill_(torch.nan) if fault == "corrupt" else out

    def _write(self, k: Tensor, v: Tensor, kv_cache: Tensor, step: StepLayout) -> None:
        blocks = step.slot_mapping // self.shape.block_size  # [T]
        offsets = step.slot_mapping % self.shape.block_size
        kv_cache[blocks, 0, offsets] = k.to(kv_cache.dtype)
        kv_cache[blocks, 1, offsets] = v.to(kv_cache.dtype)

    def _attend(
        self,
        q: Tensor,  # [m, H, D], the last m of n tokens
        kv_cache: Tensor,
        step: StepLayout,
        request: int,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [m, H, D]
        num_tokens = step.seq_lens_host[request]
        num_blocks = -(-num_tokens // self.shape.block_size)
        blocks = kv_cache[step.block_table[request, :num_blocks].long()]
        context = blocks.transpose(0, 1).flatten(1, 2)[:, :num_tokens]  # [2, n, K, D]
        k, v = context.to(q.dtype).transpose(1, 2)  # [K, n, D] each
        is_earlier = torch.ones(len(q), num_tokens, dtype=torch.bool).tril(num_tokens - len(q))
        attended = scaled_dot_product_attention(
            q.transpose(0, 1)[None], k[None], v[None],
            attn_mask=is_earlier, scale=layer.scale, enable_gqa=True,
        )  # fmt: skip
        return attended[0].transpose(0, 1)
