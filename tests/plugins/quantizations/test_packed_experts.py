"""Rows of several experts have the bits of each expert's own product."""

import pytest
import torch
from format_reference import FORMATS
from hypothesis import given, settings
from hypothesis import strategies as st
from native_libraries import SETS_AND_ARM, use_set

from quire.layers.linear.row_tiles import same_bits
from quire.native.availability import native_unavailable_reason
from quire_quantizations import linear_library as library
from quire_quantizations.formats import (
    BFLOAT16,
    FLOAT32,
)
from quire_quantizations.packed_experts import PackedExperts
from quire_quantizations.packed_weight import PackedWeight

pytestmark = pytest.mark.skipif(
    native_unavailable_reason() is not None, reason=str(native_unavailable_reason())
)


@pytest.fixture(autouse=True, params=SETS_AND_ARM)
def _instruction_set(request, monkeypatch):
    use_set(monkeypatch, library, request.param)


@pytest.fixture(params=FORMATS)
def weight_format(request):
    return FORMATS[request.param]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check(weight_format, shape, counts, has_bias=True):
    """Compare with each expert's own product; `counts` are the rows of each expert."""
    weights = [
        PackedWeight(numbers(*shape, seed=seed), weight_format) for seed in range(len(counts))
    ]
    biases = [numbers(shape[0], seed=50 + seed) for seed in range(len(counts) * has_bias)]
    experts = PackedExperts(weights, biases)
    x = numbers(sum(counts) + 3, shape[1], seed=99)  # three rows of another device's experts
    out = experts(x, torch.tensor(counts).cumsum(0))
    start = 0
    for index, count in enumerate(counts):
        bias = biases[index] if has_bias else None
        own = weights[index].multiply(x[start : start + count], bias)
        assert same_bits(out[start : start + count], own), (index, count)
        start += count


@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (100, 300), (130, 1025), (640, 512)])
def test_rows_have_the_bits_of_their_own_experts_product(weight_format, shape):
    for counts in ([1], [0, 2, 0], [3, 0, 70, 1, 4], [5, 13, 1, 0, 0, 29]):
        check(weight_format, shape, counts)


@settings(deadline=None, max_examples=30)
@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=12), threads=st.integers(1, 5))
def test_any_division_over_threads_computes_each_row_once(counts, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(BFLOAT16, (260, 512), counts, has_bias=False)
    finally:
        torch.set_num_threads(before)


def test_no_rows_give_no_rows(weight_format):
    experts = PackedExperts([PackedWeight(numbers(4, 8), weight_format)], [])
    assert experts(numbers(0, 8), torch.tensor([0])).shape == (0, 4)


def test_wrong_inputs_are_refused():
    experts = PackedExperts([PackedWeight(numbers(4, 8), FLOAT32)], [])
    with pytest.raises(ValueError, match="float32 with 8 columns"):
        experts(numbers(2, 9), torch.tensor([2]))
    with pytest.raises(ValueError, match=r"ends must be int64 \[1\]"):
        experts(numbers(2, 8), torch.tensor([1, 1]))
