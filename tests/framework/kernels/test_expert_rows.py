"""Rows sorted by expert in a few launches, against sorting by torch."""

import pytest
import torch
from kernel_device import DEVICE
from torch import Tensor

from quire.kernels.expert_rows import combine_rows, gather_rows, group_rows
from quire.layers.moe.grouping import TorchGroupedRows


def routed(num_tokens: int, num_experts: int, top_k: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    scores[:, 0] += 0.5  # one expert has many tokens
    return scores.topk(top_k, -1).indices.to(DEVICE)


@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "top_k", "own"),
    [
        (1, 4, 2, range(4)),
        (5, 3, 1, range(3)),
        (40, 60, 8, range(60)),
        (40, 60, 8, range(15, 30)),
        (64, 8, 4, range(8)),  # just one chunk
        (129, 8, 2, range(4)),  # two pairs more than one chunk
        (300, 5, 3, range(2, 5)),
    ],
)
def test_pairs_are_sorted_by_expert_and_then_by_pair(num_tokens, num_experts, top_k, own):
    experts = routed(num_tokens, num_experts, top_k)
    expected = TorchGroupedRows(own).group(experts)
    pairs, rows, ends = group_rows(experts, own)
    num_rows = int(ends[-1])
    assert ends.tolist() == expected.ends.tolist()
    assert rows.tolist() == expected.rows.tolist()
    assert pairs[:num_rows].tolist() == expected.pairs[:num_rows].tolist()
    assert pairs.dtype is rows.dtype is ends.dtype is torch.int64


def test_a_device_whose_experts_nobody_uses_has_no_rows():
    experts = torch.zeros(3, 1, dtype=torch.int64, device=DEVICE)
    pairs, rows, ends = group_rows(experts, range(4, 6))
    assert ends.tolist() == [0, 0]
    assert rows.tolist() == [[-1], [-1], [-1]]
    x = torch.ones(3, 8, device=DEVICE)
    outputs = gather_rows(x, pairs, ends, None)
    outputs.fill_(torch.nan)
    assert combine_rows(outputs, rows, None).tolist() == torch.zeros(3, 8).tolist()


def test_no_tokens_have_no_rows():
    experts = torch.empty(0, 2, dtype=torch.int64, device=DEVICE)
    pairs, rows, ends = group_rows(experts, range(3))
    assert ends.tolist() == [0, 0, 0]
    assert gather_rows(torch.empty(0, 8, device=DEVICE), pairs, ends, None).shape == (0, 8)
    assert combine_rows(torch.empty(0, 8, device=DEVICE), rows, None).shape == (0, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("size", [1, 100, 1024, 1500])
def test_gathered_and_combined_rows_are_those_of_torch(size, is_weighted, dtype):
    own = range(1, 6)
    experts = routed(20, 7, 3)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20, size, generator=generator).to(DEVICE, dtype)
    weights = torch.rand(20, 3, generator=generator).to(DEVICE) if is_weighted else None
    by_torch = TorchGroupedRows(own)
    grouping = by_torch.group(experts)
    num_rows = int(grouping.ends[-1])
    tolerance = {torch.float32: 0.0, torch.float16: 2**-10, torch.bfloat16: 2**-7}[dtype]
    gathered = gather_rows(x, grouping.pairs, grouping.ends, weights)[:num_rows]
    expected = by_torch.gather(x, grouping, weights)[:num_rows]
    torch.testing.assert_close(gathered, expected, rtol=tolerance, atol=0.0)
    outputs = torch.full((60, size), torch.nan, dtype=dtype, device=DEVICE)
    outputs[:num_rows] = expected
    combined = combine_rows(outputs, grouping.rows, weights)
    expected = by_torch.combine(outputs, grouping, weights)
    torch.testing.assert_close(combined, expected, rtol=max(tolerance, 1e-6), atol=1e-6)
