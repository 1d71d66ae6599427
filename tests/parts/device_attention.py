"""A backend without device synchronization: a token reads every slot of its request's table."""

import math

import torch

from quire.interfaces.attention import AttentionBackend, AttentionCapabilities
from quire.layers.attention.rotary import Rotation, rotate

DEVICE_ATTENTION = AttentionCapabilities(
    devices=frozenset({"cpu", "cuda"}),
    dtypes=frozenset({"float32"}),
    kv_dtypes=frozenset({"float32"}),
    head_dims=frozenset({32}),
    block_sizes=frozenset({16}),
    sliding_window=True,
    padded_pages=True,
    graphs="full",
)


class DeviceAttention(AttentionBackend):
    """K and V of a block next to each other, `[B, 2, K, S, D]`; a captured step can be replayed."""

    fuses_rotary = True

    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        return raw.view(torch.float32).view(num_blocks, 2, -1, spec.block_size, spec.layer.head_dim)

    def forward(self, q, k, v, kv_cache, metadata, layer):
        size = self.shape.block_size
        blocks, offsets = metadata.slot_mapping // size, metadata.slot_mapping % size
        kv_cache[blocks, 0, :, offsets] = k
        kv_cache[blocks, 1, :, offsets] = v
        owner, is_seen = seen_slots(metadata, len(q), size, layer.sliding_window)
        context = kv_cache[metadata.block_table.long()]  # [R, M, 2, K, S, D]
        context = context.movedim(2, 0).transpose(3, 4).flatten(2, 3)[:, owner]  # [2, T, L, K, D]
        group = q.shape[1] // k.shape[1]
        keys, values = context.where(is_seen[:, :, None, None], 0.0).repeat_interleave(group, 3)
        scores = torch.einsum("thd,tlhd->thl", q, keys) * layer.scale
        weights = scores.masked_fill(~is_seen[:, None], -math.inf).softmax(-1)
        return torch.einsum("thl,tlhd->thd", weights, values)

    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        num_turned = self.shape.num_heads + self.shape.num_kv_heads
        qk, v = qkv[:, :num_turned], qkv[:, num_turned:]
        if rotary.norm_weight is not None:
            mean_square = qk.square().mean(-1, keepdim=True)
            qk = qk * torch.rsqrt(mean_square + rotary.norm_eps) * rotary.norm_weight
        qk = rotate(qk, Rotation(rotary.table, rotary.positions))
        q, k = qk[:, : self.shape.num_heads], qk[:, self.shape.num_heads :]
        return self.forward(q, k, v, kv_cache, metadata, layer)


def seen_slots(step, num_tokens, block_size, window=None):
    """Return the request of each token, [T], and the slots visible to it, [T, L]."""
    device = step.seq_lens.device
    tokens = torch.arange(num_tokens, device=device)
    owner = torch.searchsorted(step.query_start, tokens, right=True) - 1
    owner = owner.clamp_(max=len(step.seq_lens) - 1)
    num_left = step.query_start[owner + 1] - tokens  # of the request, this token included
    positions = step.seq_lens[owner] - num_left
    slots = torch.arange(step.block_table.shape[1] * block_size, device=device)
    is_seen = slots <= positions[:, None]
    if window is not None:
        is_seen &= slots > positions[:, None] - window
    return owner, is_seen
