"""The layer norm in one launch, against the formula in float64."""

import pytest
import torch
from kernel_device import DEVICE
from torch import Tensor

from quire.kernels.layer_norm import add_layer_norm

# Triton's interpreter rounds to bfloat16 towards zero, so the last bit may differ there.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
EPS = 1e-5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE)


def assert_close(ours: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


def by_formula(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = EPS
) -> Tensor:
    x = x.double()
    x = x - x.mean(-1, keepdim=True)
    normed = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    normed = normed if weight is None else normed * weight.double()
    return normed if bias is None else normed + bias.double()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 100, 1024, 20000])
def test_the_sum_is_rounded_and_then_normed(size, dtype):
    x, residual = numbers(3, size).to(dtype), (3 * numbers(3, size, seed=1)).to(dtype)
    weight, bias = numbers(size, seed=2).to(dtype), numbers(size, seed=3).to(dtype)
    normed, total = add_layer_norm(x, residual, weight, bias, EPS)
    if dtype is torch.bfloat16:
        assert_close(total, x.double() + residual.double())
    else:
        assert torch.equal(total, x + residual)
    assert normed.dtype is total.dtype is dtype
    assert_close(normed, by_formula(total, weight, bias))
    assert torch.equal(x, numbers(3, size).to(dtype))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
def test_parts_may_be_missing_and_without_a_residual_the_input_is_the_sum(has_weight, has_bias):
    x = numbers(4, 96) + 5
    weight = numbers(96, seed=2) if has_weight else None
    bias = numbers(96, seed=3) if has_bias else None
    normed, total = add_layer_norm(x, None, weight, bias, EPS)
    assert total is x
    assert_close(normed, by_formula(x, weight, bias))


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_eps_is_added_to_the_variance(eps):
    x = 0.1 * numbers(2, 48)
    assert_close(add_layer_norm(x, None, None, None, eps)[0], by_formula(x, eps=eps))


def test_a_wide_weight_multiplies_before_the_result_is_rounded():
    x, weight = numbers(3, 640).half(), 1 + 1e-3 * numbers(640, seed=1)
    normed, _ = add_layer_norm(x, None, weight, None, EPS)
    assert normed.dtype is torch.float16
    assert (normed == by_formula(x, weight).half()).float().mean() > 0.99


def test_rows_may_lie_apart_and_heads_may_be_rows():
    wide = numbers(5, 100)
    x, residual = wide[:, :40], numbers(5, 70, seed=1)[:, 30:]
    normed, total = add_layer_norm(x, residual, None, None, EPS)
    assert torch.equal(total, x + residual)
    assert_close(normed, by_formula(total))
    heads = numbers(3, 4, 24)
    assert_close(add_layer_norm(heads, None, None, None, EPS)[0], by_formula(heads))


@pytest.mark.parametrize("size", [7, 1000])
def test_a_row_is_the_same_in_every_batch(size):
    x, residual = numbers(9, size).bfloat16(), numbers(9, size, seed=1).bfloat16()
    whole, _ = add_layer_norm(x, residual, None, None, EPS)
    for row in (0, 4, 8):
        one = slice(row, row + 1)
        alone, _ = add_layer_norm(x[one].clone(), residual[one], None, None, EPS)
        assert torch.equal(alone[0], whole[row])


def test_of_no_rows_there_is_nothing():
    x = numbers(0, 64)
    normed, total = add_layer_norm(x, x, None, None, EPS)
    assert normed.shape == total.shape == (0, 64)
