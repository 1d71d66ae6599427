"""Norms of heads and of projections in one launch, against the formula in float64."""

import pytest
import torch
from kernel_device import DEVICE
from torch import Tensor

from quire.kernels.group_norm import GroupNormLaunch

# Triton's interpreter rounds to bfloat16 towards zero, so the last bit may differ there.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
EPS = 1e-5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE)


def assert_close(ours: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


def by_formula(x: Tensor, *, is_centred: bool = False) -> Tensor:
    x = x.double()
    x = x - x.mean(-1, keepdim=True) if is_centred else x
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 24, 64, 128])
def test_each_head_is_normalised_where_it_is(size, dtype, has_weight, is_centred):
    rows = numbers(5, 9, size).to(dtype)
    given, weight = rows.clone(), numbers(6, size, seed=1).to(dtype)
    launch = GroupNormLaunch(weight if has_weight else None, EPS, is_centred=is_centred)
    launch.in_place(rows[:, 1:7])
    normed = by_formula(given[:, 1:7], is_centred=is_centred)
    assert_close(rows[:, 1:7], normed * weight.double() if has_weight else normed)
    assert torch.equal(rows[:, 0], given[:, 0])
    assert torch.equal(rows[:, 7:], given[:, 7:])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("num_first", [2, 4, 5])
def test_two_groups_have_all_query_heads_and_all_key_heads(num_first, dtype):
    rows, weight = numbers(5, 9, 24).to(dtype), numbers(6, 24, seed=1).to(dtype)
    given = rows.clone()
    GroupNormLaunch(weight, EPS, num_first=num_first).in_place(rows[:, 1:7])
    q, k = given[:, 1 : 1 + num_first].flatten(1), given[:, 1 + num_first : 7].flatten(1)
    normed = torch.cat((by_formula(q), by_formula(k)), 1).view(5, 6, 24)
    assert_close(rows[:, 1:7], normed * weight.double())
    assert torch.equal(rows[:, 0], given[:, 0])
    assert torch.equal(rows[:, 7:], given[:, 7:])


def test_groups_may_be_rounded_before_the_product_with_the_weight():
    heads, weight = numbers(40, 6, 24).half(), numbers(6, 24, seed=1).half()
    once, before = (by_formula(heads) * weight.double()).half(), by_formula(heads).half() * weight
    for rounds, expected, other in ((False, once, before), (True, before, once)):
        found = heads.clone()
        GroupNormLaunch(weight, EPS, rounds_before_weight=rounds).in_place(found)
        assert (found == expected).float().mean() > 0.99
        assert (found == other).float().mean() < 0.9


def test_heads_that_lie_apart_are_refused():
    with pytest.raises(ValueError, match="heads must lie one after the other, got strides"):
        GroupNormLaunch(None, EPS).in_place(numbers(2, 6, 4)[:, ::2])
