"""Rotations, against complex numbers in float64."""

import pytest
import torch
from model_parts import CONTEXT

from quire.layers import RotaryEmbedding, rotate
from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.attention.rope_scaling import LinearScaling, YarnScaling


@pytest.mark.parametrize("theta", [100.0, 10000.0])
def test_each_pair_turns_by_its_angle(theta):
    rotary = RotaryEmbedding(8, 50, RopeParameters(theta), CONTEXT)
    heads = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 7, 49])
    rotated = rotate(heads, rotary(positions))
    pairs = torch.complex(heads[..., :4].double(), heads[..., 4:].double())
    speeds = torch.tensor([theta ** (-2 * i / 8) for i in range(4)], dtype=torch.float64)
    angles = positions.double()[:, None, None] * speeds
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag), -1).float()
    torch.testing.assert_close(rotated, expected, rtol=1e-5, atol=1e-5)


def test_the_angles_of_a_step_are_gathered_when_they_are_asked_for_and_once():
    rotary, positions = RotaryEmbedding(8, 50, RopeParameters(100.0), CONTEXT), torch.tensor([3, 7])
    rotation = rotary(positions)
    assert rotation.table is rotary.table
    assert rotation.positions is positions
    positions[1] = 9  # a buffer that is filled before the rotation
    assert torch.equal(rotation.cos, rotary.table[[3, 9], :1])
    assert torch.equal(rotation.sin, rotary.table[[3, 9], 1:])
    assert rotation.cos is rotation.cos


def test_the_heads_that_come_in_stay_as_they_are():
    rotary = RotaryEmbedding(8, 50, RopeParameters(10000.0), CONTEXT)
    heads = torch.ones(1, 2, 8)
    rotate(heads, rotary(torch.tensor([3])))
    assert torch.equal(heads, torch.ones(1, 2, 8))


def test_products_depend_on_the_distance_only():
    rotary = RotaryEmbedding(8, 100, RopeParameters(10000.0), CONTEXT)
    q, k = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    at = [(rotate(q, rotary(torch.tensor([i + 5]))) * rotate(k, rotary(torch.tensor([i])))).sum()
          for i in (0, 40, 90)]  # fmt: skip
    torch.testing.assert_close(at[0], at[1])
    torch.testing.assert_close(at[0], at[2])


def test_linear_scaling_is_a_position_divided():
    stretched = RotaryEmbedding(8, 50, RopeParameters(10000.0, LinearScaling(4.0)), CONTEXT)
    plain = RotaryEmbedding(8, 50, RopeParameters(10000.0), CONTEXT)
    torch.testing.assert_close(stretched.table[40], plain.table[10])


def test_yarn_scales_the_rotated_pairs_and_leaves_the_others():
    yarn = YarnScaling(factor=4.0, original_max_positions=16, attention_factor=1.25)
    table = RotaryEmbedding(8, 64, RopeParameters(100.0, yarn, rotary_dim=4), CONTEXT).table
    lengths = table.double().square().sum(1)[:, :4]  # cos**2 + sin**2 of each pair
    expected = torch.tensor([1.25**2, 1.25**2, 1.0, 1.0], dtype=torch.float64).expand(64, 4)
    torch.testing.assert_close(lengths, expected, rtol=1e-5, atol=1e-5)


def test_the_table_has_the_dtype_of_the_model_and_the_accuracy_of_float32():
    from dataclasses import replace

    rope = RopeParameters(10000.0)
    table = RotaryEmbedding(8, 5000, rope, replace(CONTEXT, dtype=torch.bfloat16)).table
    exact = RotaryEmbedding(8, 5000, rope, CONTEXT).table
    assert table.dtype is torch.bfloat16
    torch.testing.assert_close(table, exact.bfloat16(), rtol=0, atol=0)
