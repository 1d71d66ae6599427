"""Pages of a small KV cache, built as in a backend, with the shape of the backend."""

import torch

from quire.interfaces.attention import AttentionShape
from quire.interfaces.kv_cache import KVLayer
from quire_attention_backends.shared.kv_layout import PagesBackend, split_pages
from quire_kv_cache_specs.full_attention import FullAttentionSpec

NUM_BLOCKS, BLOCK_SIZE = 6, 16
KV_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8")


def shape_of(kv_dtype, num_heads=6, num_kv_heads=2, head_dim=64, **more):
    sizes = {
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_blocks_per_request": 5,
        "dtype": torch.float32,
        "kv_dtype": kv_dtype,
        "device": torch.device("cpu"),
    }
    return AttentionShape(**{**sizes, **more})


def pages_of(shape, num_padding_rows=0):
    """Return pages of zeros, and their raw bytes, `[B, bytes from page to page]`."""
    layer = KVLayer("layers.0.attn", "full_attention", shape.num_kv_heads, shape.head_dim)
    spec = FullAttentionSpec(layer, shape.block_size, shape.kv_dtype)
    distance = spec.page_bytes + num_padding_rows * spec.row_bytes
    raw = torch.zeros(NUM_BLOCKS, distance, dtype=torch.uint8, device=shape.device)
    view = PagesBackend.kv_view(raw[:, : spec.page_bytes], spec, NUM_BLOCKS)
    return split_pages(view, shape), raw


def numbers_at(pages, slots, layer):
    """Return K and V in slots as float32, `[2, T, K, D]`."""
    blocks, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    found = pages.data[blocks, :, :, offsets].movedim(1, 0)
    if pages.kind == "float8":
        scales = torch.tensor([layer.k_scale, layer.v_scale], device=found.device)
        return found.view(torch.float8_e4m3fn).float() * scales[:, None, None, None]
    if pages.kind == "int8":
        return found * pages.scales[blocks, :, :, offsets].movedim(1, 0).unsqueeze(-1)
    return found.float()
