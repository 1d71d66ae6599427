"""Launches of latent attention, one for each supported variant."""

import itertools

import torch

from quire.interfaces.attention import StepLayout
from quire.interfaces.mla import MLAShape
from quire_attention_backends.mla.triton_mla import (
    LATENT_DIMS,
    MANY_PROGRAMS,
    ROPE_DIMS,
    TritonMLABackend,
)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def few():
    """Launch DeepSeek's rows, on one device and one of 8, in bfloat16; small ones in float32."""
    for num_heads, block_size in ((16, 16), (128, 64)):
        _launch(num_heads, 512, 64, torch.bfloat16, torch.bfloat16, block_size)
    _launch(4, 32, 16, torch.float32, torch.float32)


def short_rows():
    """Launch latents of up to 128 elements, in every type and tile of heads."""
    _launch_rows(LATENT_DIMS[:3])


def long_rows():
    """Launch longer latents."""
    _launch_rows(LATENT_DIMS[3:])


def every_type():
    """Launch every type with every type of the cache, for DeepSeek's rows."""
    for dtype, kv_dtype, num_heads in itertools.product(DTYPES, DTYPES, (16, 128)):
        _launch(num_heads, 512, 64, dtype, kv_dtype)


def _launch_rows(latent_dims):
    rows = itertools.product(latent_dims, ROPE_DIMS)
    for (latent_dim, rope_dim), dtype, num_heads in itertools.product(rows, DTYPES, (16, 128)):
        _launch(num_heads, latent_dim, rope_dim, dtype, dtype)


def _launch(num_heads, latent_dim, rope_dim, dtype, kv_dtype, block_size=64):
    backend = TritonMLABackend(
        MLAShape(
            num_heads=num_heads,
            num_kv_heads=1,
            head_dim=latent_dim + rope_dim,
            latent_dim=latent_dim,
            rope_dim=rope_dim,
            block_size=block_size,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_blocks_per_request=8,
            dtype=dtype,
            kv_dtype=str(kv_dtype).removeprefix("torch."),
            device=torch.device("cpu"),
        )
    )
    step = StepLayout(
        query_start=torch.zeros(5, dtype=torch.int32),
        seq_lens=torch.zeros(4, dtype=torch.int32),
        block_table=torch.zeros(4, 16, dtype=torch.int32),
        slot_mapping=torch.zeros(16, dtype=torch.int64),
        num_tokens=16,
        max_query_len=4,
        query_lens_host=[],
        seq_lens_host=[],
    )
    metadata = backend.prepare(step)
    q_latent = torch.zeros(16, num_heads, latent_dim, dtype=dtype)
    q_rope = torch.zeros(16, num_heads, rope_dim, dtype=dtype)
    rows = torch.zeros(16, latent_dim + rope_dim, dtype=dtype)
    latent, k_rope = rows.split((latent_dim, rope_dim), 1)
    cache = torch.zeros(4, block_size, latent_dim + rope_dim, dtype=kv_dtype)
    backend.forward(q_latent, q_rope, latent, k_rope, cache, metadata, 0.1)
    many = torch.zeros(MANY_PROGRAMS // num_heads + 1, num_heads, latent_dim, dtype=dtype)
    backend._merge(torch.zeros(len(many), 2, dtype=torch.int32), many)
