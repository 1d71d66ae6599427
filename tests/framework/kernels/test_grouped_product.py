"""The product of the rows of several experts, against one product for each."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_device import DEVICE
from torch import Tensor

from quire.kernels.grouped_product import TILES, grouped_product, most_tiles

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10}
if DEVICE.type == "cuda":  # Triton's interpreter cannot multiply matrices of bfloat16
    TOLERANCE[torch.bfloat16] = 2**-7


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def check(counts, shape, dtype, *, has_bias=True, batch_invariant=False):
    """`counts` are the rows of each expert; five rows of other devices' experts are behind them."""
    num_outputs, num_columns = shape
    weight = (numbers(len(counts), *shape) / num_columns**0.5).to(dtype)
    bias = numbers(len(counts), num_outputs, seed=1).to(dtype) if has_bias else None
    x = numbers(sum(counts) + 5, num_columns, seed=2).to(dtype)
    x[sum(counts) :] = torch.nan
    ends = torch.tensor(counts, device=DEVICE).cumsum(0)
    out = grouped_product(x, weight, bias, ends, batch_invariant=batch_invariant)
    assert out.dtype is dtype
    start = 0
    for expert, count in enumerate(counts):
        expected = x[start : start + count].double() @ weight[expert].double().T
        if bias is not None:
            expected += bias[expert].double()
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(
            out[start : start + count].double(), expected, rtol=tolerance, atol=4 * tolerance
        )
        start += count


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "counts",
    [[1], [0, 1, 0, 2], [17, 0, 16, 15], [3] * 5, [0, 0, 40, 1, 0]],
    ids=str,
)
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_each_row_is_multiplied_by_its_expert(counts, batch_invariant, dtype):
    check(counts, (70, 40), dtype, batch_invariant=batch_invariant)


@pytest.mark.parametrize("shape", [(1, 1), (64, 128), (65, 129), (16, 300)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_outputs_and_inputs_may_have_any_number(shape, has_bias):
    check([2, 0, 19], shape, torch.float32, has_bias=has_bias)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_many_rows_of_an_expert_have_large_tiles(dtype):
    check([150, 1, 70], (40, 40), dtype)


def test_no_rows_give_no_rows():
    ends = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    assert grouped_product(numbers(0, 8), numbers(2, 4, 8), None, ends).shape == (0, 4)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=20),
    rows=st.sampled_from([tile.rows for tiles in TILES.values() for tile in tiles]),
)
def test_there_are_enough_programs_for_any_distribution(counts, rows):
    needed = sum(-(-count // rows) for count in counts)
    assert needed <= most_tiles(sum(counts), len(counts), rows)


def test_there_are_no_more_programs_than_the_worst_distribution_needs():
    assert most_tiles(3, 64, 16) == 3
    assert most_tiles(64, 4, 16) == 7  # 1 + 1 + 1 + 61 rows
    assert most_tiles(1, 1, 128) == 1


@pytest.fixture
def dot_by_rows(monkeypatch):
    """Multiply each row of a tile alike, as a GPU does. NumPy does not on every processor."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(np, "matmul", partial(np.einsum, "ij,jk->ik"))


@pytest.mark.usefixtures("dot_by_rows")
def test_batch_invariant_rows_have_the_same_bits_beside_others():
    weight = numbers(3, 70, 130)
    x = numbers(200, 130, seed=2)
    ends = torch.tensor([100, 100, 200], device=DEVICE)
    together = grouped_product(x, weight, None, ends, batch_invariant=True)
    alone = torch.tensor([0, 0, 1], device=DEVICE)
    for row in (100, 137, 199):
        one = grouped_product(x[row : row + 1], weight, None, alone, batch_invariant=True)
        assert torch.equal(one[0], together[row])
