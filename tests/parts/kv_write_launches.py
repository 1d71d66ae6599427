"""Launches of the KV writes, one for each supported variant."""

import itertools

import torch

from quire.interfaces.attention import AttentionLayerParams, RotaryStep
from quire_attention_backends.shared.kv_layout import Pages
from quire_attention_backends.triton.kv_write import rotate_and_write, write_kv

HEAD_DIMS = (32, 64, 80, 96, 128, 256)
KV_TYPES = {
    "plain": (torch.bfloat16, torch.float16, torch.float32),
    "float8": (torch.uint8,),
    "int8": (torch.int8,),
}


def few():
    """Launch the head sizes of common models, in bfloat16."""
    _launch_all((64, 128), (torch.bfloat16,))


def every():
    _launch_all(HEAD_DIMS, (torch.bfloat16, torch.float16, torch.float32))


def _launch_all(head_dims, dtypes):
    for head_dim, dtype, kind in itertools.product(head_dims, dtypes, KV_TYPES):
        kept = dtype if kind == "plain" else KV_TYPES[kind][0]
        data = torch.zeros(4, 2, 8, 16, head_dim, dtype=kept)
        scales = torch.zeros(4, 2, 8, 16) if kind == "int8" else None
        pages, layer = Pages(data, scales, kind), AttentionLayerParams(0.1)
        slots = torch.zeros(3, dtype=torch.int64)
        k, v = torch.zeros(2, 3, 8, head_dim, dtype=dtype)
        write_kv(k, v, pages, slots, layer)
        qkv = torch.zeros(3, 16 + 2 * 8, head_dim, dtype=dtype)
        table = torch.zeros(9, 2, head_dim, dtype=dtype)
        for weight in (None, torch.ones(16 + 8, head_dim, dtype=dtype)):
            rotary = RotaryStep(table, slots, weight, 1e-6)
            rotate_and_write(qkv, rotary, pages, slots, layer, 16)
