"""The norm in one launch, against the formula in float64 and against torch's steps."""

import pytest
import torch
from kernel_device import DEVICE
from torch import Tensor

from quire.kernels.rms_norm import add_rms_norm

# Triton's interpreter rounds to bfloat16 towards zero, so the last bit may differ there.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
EPS = 1e-5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE)


def by_formula(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def assert_close(ours: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance / 4)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 100, 1024, 5120, 20000])
def test_the_sum_is_rounded_and_then_normed(size, dtype):
    x, residual = numbers(3, size).to(dtype), (3 * numbers(3, size, seed=1)).to(dtype)
    weight = numbers(size, seed=2).to(dtype)
    normed, total = add_rms_norm(x, residual, weight, EPS)
    if dtype is torch.bfloat16:
        assert_close(total, x.double() + residual.double())
    else:
        assert torch.equal(total, x + residual)
    assert normed.dtype is total.dtype is dtype
    assert_close(normed, by_formula(total, weight))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_without_a_residual_the_input_is_the_sum(dtype):
    x, weight = numbers(4, 96).to(dtype), numbers(96, seed=2).to(dtype)
    normed, total = add_rms_norm(x, None, weight, EPS)
    assert total is x
    assert_close(normed, by_formula(x, weight))


def test_neither_input_is_changed():
    x, residual = numbers(2, 64), numbers(2, 64, seed=1)
    add_rms_norm(x, residual, numbers(64, seed=2), EPS)
    assert torch.equal(x, numbers(2, 64))
    assert torch.equal(residual, numbers(2, 64, seed=1))


def test_a_wide_weight_multiplies_before_the_result_is_rounded():
    x, weight = numbers(3, 640).half(), 1 + 1e-3 * numbers(640, seed=1)
    normed, _ = add_rms_norm(x, None, weight, EPS)
    rounded_before, _ = add_rms_norm(x, None, weight.half(), EPS)
    expected = by_formula(x, weight).half()
    assert normed.dtype is torch.float16
    assert (normed == expected).float().mean() > 0.99  # nearly halfway between two, either will do
    assert (rounded_before == expected).float().mean() < 0.9


@pytest.mark.parametrize("has_residual", [False, True])
def test_without_a_weight_rows_are_only_normalised(has_residual):
    x, residual = numbers(3, 100), numbers(3, 100, seed=1) if has_residual else None
    normed, total = add_rms_norm(x, residual, None, EPS)
    assert_close(normed, by_formula(total, torch.ones(100, device=DEVICE)))


def test_rows_may_be_rounded_before_the_product_with_the_weight():
    x, weight = numbers(3, 640).half(), numbers(640, seed=1).half()
    once = by_formula(x, weight).half()
    before = by_formula(x, torch.ones(640, device=DEVICE)).half() * weight
    for rounds, expected, other in ((False, once, before), (True, before, once)):
        normed, _ = add_rms_norm(x, None, weight, EPS, rounds_before_weight=rounds)
        assert (normed == expected).float().mean() > 0.99
        assert (normed == other).float().mean() < 0.9


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_eps_is_added_to_the_mean_square(eps):
    x, weight = 0.1 * numbers(2, 48), numbers(48, seed=1)
    assert_close(add_rms_norm(x, None, weight, eps)[0], by_formula(x, weight, eps))


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_very_small_and_very_large_numbers_keep_their_direction(size):
    x, weight = numbers(2, 64) * size, torch.ones(64, device=DEVICE)
    assert_close(add_rms_norm(x, None, weight, 1e-38)[0], by_formula(x, weight, 1e-38))


def test_rows_may_lie_apart():
    wide = numbers(5, 100)
    x, residual = wide[:, :40], numbers(5, 70, seed=1)[:, 30:]
    normed, total = add_rms_norm(x, residual, torch.ones(40, device=DEVICE), EPS)
    assert torch.equal(total, x + residual)
    assert_close(normed, by_formula(total, torch.ones(40, device=DEVICE)))


def test_heads_may_be_rows():
    x, weight = numbers(3, 4, 24), numbers(24, seed=1)
    normed, _ = add_rms_norm(x, None, weight, EPS)
    assert normed.shape == x.shape
    assert_close(normed, by_formula(x, weight))


@pytest.mark.parametrize("size", [7, 1000])
def test_a_row_is_the_same_in_every_batch(size):
    x, residual = numbers(9, size).bfloat16(), numbers(9, size, seed=1).bfloat16()
    weight = numbers(size, seed=2).bfloat16()
    whole, _ = add_rms_norm(x, residual, weight, EPS)
    for row in (0, 4, 8):
        alone, _ = add_rms_norm(x[row : row + 1].clone(), residual[row : row + 1], weight, EPS)
        assert torch.equal(alone[0], whole[row])


def test_of_no_rows_there_is_nothing():
    x = numbers(0, 64)
    normed, total = add_rms_norm(x, x, torch.ones(64, device=DEVICE), EPS)
    assert normed.shape == total.shape == (0, 64)
