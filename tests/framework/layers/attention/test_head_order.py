"""Order of a head's elements: rotations of any shape become the one that kernels have."""

import pytest
import torch
from model_parts import CONTEXT

from quire.layers import RotaryEmbedding, rotate
from quire.layers.attention.head_order import head_order
from quire.layers.attention.rope_parameters import RopeParameters

HEAD_DIM, NUM_POSITIONS = 12, 40


def turned(heads, rope):
    """Rotate `[T, n, D]` by complex numbers, as the checkpoint stores the elements."""
    dim = rope.rotary_dim or HEAD_DIM
    wide = heads.double()
    rotated, rest = wide[..., :dim], wide[..., dim:]
    if rope.is_interleaved:
        pairs = torch.view_as_complex(rotated.reshape(*rotated.shape[:-1], dim // 2, 2))
    else:
        pairs = torch.complex(*rotated.chunk(2, -1))
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    positions = torch.arange(len(heads), dtype=torch.float64)
    angles = torch.outer(positions, rope.theta**-exponents).unsqueeze(1)
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    if rope.is_interleaved:
        return torch.cat((torch.view_as_real(pairs).flatten(-2), rest), -1)
    return torch.cat((pairs.real, pairs.imag, rest), -1)


@pytest.mark.parametrize("rotary_dim", [None, 2, 4, 10])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_rotated_heads_are_those_of_the_checkpoint_in_another_order(rotary_dim, is_interleaved):
    rope = RopeParameters(50.0, None, rotary_dim, is_interleaved)
    heads = torch.randn(NUM_POSITIONS, 3, HEAD_DIM, generator=torch.Generator().manual_seed(1))
    order = list(head_order(HEAD_DIM, rope) or range(HEAD_DIM))
    assert sorted(order) == list(range(HEAD_DIM))
    rotary = RotaryEmbedding(HEAD_DIM, NUM_POSITIONS, rope, CONTEXT)
    found = rotate(heads[..., order], rotary(torch.arange(NUM_POSITIONS)))
    expected = turned(heads, rope)[..., order].float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_heads_without_a_rotation_or_in_the_order_of_kernels_stay():
    assert head_order(HEAD_DIM, None) is None
    assert head_order(HEAD_DIM, RopeParameters(50.0)) is None
