"""Latent attention without device synchronization: a token reads every slot of its table."""

import math

import torch
from device_attention import seen_slots

from quire.interfaces.attention import AttentionCapabilities
from quire.interfaces.mla import MLABackend

DEVICE_MLA = AttentionCapabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({"float32"}),
    kv_dtypes=frozenset({"float32"}),
    block_sizes=frozenset({16}),
    layouts=frozenset({"mla"}),
    padded_pages=True,
    graphs="full",
)


class DeviceMLA(MLABackend):
    """Rows of a block after each other, `[B, S, C + P]`; a captured step can be replayed."""

    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        pages = raw if raw.dim() == 2 else raw.view(num_blocks, -1)
        return pages.view(torch.float32).unflatten(1, (spec.block_size, spec.layer.head_dim))

    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        size, latent_dim = self.shape.block_size, q_latent.shape[2]
        blocks, offsets = metadata.slot_mapping // size, metadata.slot_mapping % size
        kv_cache[blocks, offsets] = torch.cat((latent, k_rope), 1)
        owner, is_seen = seen_slots(metadata, len(q_latent), size)
        context = kv_cache[metadata.block_table.long()].flatten(1, 2)[owner]  # [T, L, C + P]
        rows = context.where(is_seen[:, :, None], 0.0)
        scores = torch.einsum("thd,tld->thl", torch.cat((q_latent, q_rope), 2), rows) * scale
        weights = scores.masked_fill(~is_seen[:, None], -math.inf).softmax(-1)
        return torch.einsum("thl,tlc->thc", weights, rows[:, :, :latent_dim])
