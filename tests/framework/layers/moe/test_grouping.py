"""Grouping of rows by expert, and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quire.layers.moe.grouping import GroupedRows, TorchGroupedRows
from quire.layers.moe.native_grouping import NativeGroupedRows

KINDS: list[type[GroupedRows]] = [
    TorchGroupedRows,
    NativeGroupedRows,
]  # of Triton: test_expert_rows.py
BY_KIND = pytest.mark.parametrize("kind", KINDS)


def routed(num_tokens: int, num_experts: int, top_k: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num_tokens, num_experts, generator=generator).topk(top_k, -1).indices


@BY_KIND
def test_rows_of_an_expert_are_adjacent_and_in_the_order_of_tokens(kind):
    grouping = kind(range(5)).group(torch.tensor([[4, 0], [0, 2], [4, 2]]))
    assert grouping.pairs.tolist() == [1, 2, 3, 5, 0, 4]
    assert grouping.ends.tolist() == [2, 2, 4, 4, 6]
    assert grouping.rows.tolist() == [[4, 0], [1, 2], [5, 3]]


@BY_KIND
def test_pairs_of_other_devices_experts_have_no_row(kind):
    grouping = kind(range(2, 4)).group(torch.tensor([[4, 0], [0, 2], [4, 2]]))
    assert grouping.ends.tolist() == [2, 2]
    assert grouping.pairs[:2].tolist() == [3, 5]
    assert grouping.rows.tolist() == [[-1, -1], [-1, 0], [-1, 1]]


@BY_KIND
def test_no_tokens_have_no_rows(kind):
    grouping = kind(range(3)).group(torch.empty(0, 2, dtype=torch.int64))
    assert grouping.ends.tolist() == [0, 0, 0]
    assert grouping.rows.shape == (0, 2)


@BY_KIND
@settings(deadline=None)
@given(
    num_tokens=st.integers(1, 40),
    num_experts=st.integers(1, 9),
    top_k=st.integers(1, 4),
    first=st.integers(0, 8),
    seed=st.integers(0, 99),
)
def test_what_is_gathered_and_combined_is_the_weighted_sum_of_own_experts(
    kind, num_tokens, num_experts, top_k, first, seed
):
    top_k, first = min(top_k, num_experts), min(first, num_experts - 1)
    own = range(first, num_experts)
    experts = routed(num_tokens, num_experts, top_k, seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, 7, generator=generator)
    weights = torch.rand(num_tokens, top_k, generator=generator)
    rows = kind(own)
    grouping = rows.group(experts)
    num_rows = int(grouping.ends[-1])
    factors = torch.repeat_interleave(
        torch.arange(1.0, len(own) + 1), grouping.ends.diff(prepend=torch.zeros(1).long())
    )  # an expert multiplies by its number
    outputs = torch.full((num_tokens * top_k, 7), torch.nan)
    outputs[:num_rows] = rows.gather(x, grouping, None)[:num_rows] * factors.unsqueeze(1)
    expected = torch.zeros(num_tokens, 7)
    for index in range(top_k):
        number = (experts[:, index] - first + 1).clamp(min=0)
        expected += x * (number * weights[:, index]).unsqueeze(1)
    torch.testing.assert_close(rows.combine(outputs, grouping, weights), expected)
    scaled = rows.gather(x, grouping, weights)[:num_rows] * factors.unsqueeze(1)
    outputs[:num_rows] = scaled
    torch.testing.assert_close(rows.combine(outputs, grouping, None), expected)


def test_half_precision_is_summed_in_float32_and_rounded_once():
    rows = TorchGroupedRows(range(3))
    grouping = rows.group(torch.tensor([[0, 1, 2]]))
    outputs = torch.tensor([[256.0], [1.0], [1.0]], dtype=torch.bfloat16)
    combined = rows.combine(outputs, grouping, torch.ones(1, 3))
    assert combined.dtype is torch.bfloat16
    assert combined.item() == 258.0  # 256 + 1 is 256 in bfloat16
