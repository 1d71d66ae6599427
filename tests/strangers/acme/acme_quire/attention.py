"""Attention backend in plain torch: one request at a time, without kernels."""

import torch

from quire.interfaces.attention import AttentionBackend


class PlainAttention(AttentionBackend):
    """Attention over a paged KV cache of the layout [B, 2, S, K, D]."""

    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        """Return the raw bytes as [B, 2, S, K, D]."""
        elements = raw.view(torch.float32)
        return elements.view(num_blocks, 2, spec.block_size, -1, spec.layer.head_dim)

    def forward(self, q, k, v, kv_cache, metadata, layer):
        """Write K and V, then attend each request's queries to its own context."""
        blocks = metadata.slot_mapping // self.shape.block_size  # [T]
        offsets = metadata.slot_mapping % self.shape.block_size
        kv_cache[blocks, 0, offsets] = k
        kv_cache[blocks, 1, offsets] = v
        out = torch.zeros_like(q)
        start = 0
        for request, length in enumerate(metadata.query_lens_host):
            rows = slice(start, start + length)
            context = self._context(kv_cache, metadata, request)  # [2, n, H, D]
            out[rows] = attend(q[rows], *context, layer.scale)
            start += length
        return out

    def _context(self, kv_cache, metadata, request):
        """Return K and V of all tokens of a request, repeated for each query head."""
        num_tokens = metadata.seq_lens_host[request]
        num_blocks = -(-num_tokens // self.shape.block_size)
        blocks = kv_cache[metadata.block_table[request, :num_blocks].long()]
        tokens = blocks.transpose(0, 1).flatten(1, 2)[:, :num_tokens]  # [2, n, K, D]
        return tokens.repeat_interleave(self.shape.num_heads // self.shape.num_kv_heads, 2)


def attend(q, k, v, scale):  # [m, H, D], [n, H, D] twice -> [m, H, D]
    """Return causal attention of the last m of n tokens."""
    scores = torch.einsum("mhd,nhd->hmn", q, k) * scale
    num_queries, num_keys = scores.shape[1:]
    is_later = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device)
    is_later = is_later.triu(num_keys - num_queries + 1)
    weights = scores.masked_fill(is_later, -torch.inf).softmax(-1)
    return torch.einsum("hmn,nhd->mhd", weights, v)
