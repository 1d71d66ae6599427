"""Slopes of linear biases, against those of transformers."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from quire.layers import alibi_slopes


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 7, 8, 12, 16, 25, 71, 112])
def test_slopes_are_those_of_bloom_and_mpt(num_heads):
    slopes = torch.tensor(alibi_slopes(num_heads))
    bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)  # [H, 1, 2]
    torch.testing.assert_close(slopes, bloom[:, 0, 1])
    mpt = build_mpt_alibi_tensor(num_heads, 2, alibi_bias_max=8)  # [H, 1, 2], positions -1 and 0
    torch.testing.assert_close(slopes, -mpt[:, 0, 0])


@pytest.mark.parametrize("num_heads", [4, 12])
def test_another_largest_bias_changes_all_slopes(num_heads):
    mpt = build_mpt_alibi_tensor(num_heads, 2, alibi_bias_max=16)
    torch.testing.assert_close(torch.tensor(alibi_slopes(num_heads, 16.0)), -mpt[:, 0, 0])
