"""The shape of latent attention is another shape with the parts of its rows."""

from dataclasses import fields

import torch

from quire.interfaces.attention import AttentionShape
from quire.interfaces.mla import MLAShape


def test_a_shape_keeps_all_that_it_was_made_of():
    shape = AttentionShape(
        num_heads=4,
        num_kv_heads=1,
        head_dim=48,
        block_size=16,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        max_blocks_per_request=5,
        dtype=torch.float16,
        kv_dtype="bfloat16",
        device=torch.device("meta"),
        page_bytes=4096,
        batch_invariant=True,
    )
    made = MLAShape.of(shape, 32, 16)
    assert (made.latent_dim, made.rope_dim) == (32, 16)
    for field in fields(AttentionShape):
        assert getattr(made, field.name) == getattr(shape, field.name)
