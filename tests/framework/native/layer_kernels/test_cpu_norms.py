"""The C++ norms against the formulas in float64, for every instruction set of this machine."""

import pytest
import torch
from native_libraries import SETS_AND_ARM, use_set
from torch import Tensor

from quire.native.layer_kernels import libraries
from quire.native.layer_kernels.cpu_norms import AddLayerNorm, AddRMSNorm, GroupNorms

EPS = 1e-5
SIZES = [1, 7, 8, 15, 16, 17, 64, 100, 1024, 5121]


@pytest.fixture(params=SETS_AND_ARM, autouse=True)
def _each_set(request, monkeypatch):
    use_set(monkeypatch, libraries, request.param, "LAYERS")


def numbers(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def assert_close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=5e-7)


def by_formula(
    x: Tensor, weight: Tensor | None, eps: float = EPS, bias: Tensor | None = None, centred=False
) -> Tensor:
    x = x.double()
    x = x - x.mean(-1, keepdim=True) if centred else x
    normed = x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    normed = normed if weight is None else normed * weight.double()
    return normed if bias is None else normed + bias.double()


def rms_norm(weight: Tensor, eps: float = EPS) -> AddRMSNorm:
    return AddRMSNorm(weight, len(weight), eps)


def layer_norm(weight: Tensor, bias: Tensor | None = None, eps: float = EPS) -> AddLayerNorm:
    return AddLayerNorm(weight, bias, len(weight), eps)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_norm_is_that_of_the_sum(size, is_centred, has_weight, has_bias):
    x, residual = numbers(3, size), numbers(3, size, seed=1, spread=3)
    weight = numbers(size, seed=2) if has_weight else None
    bias = numbers(size, seed=3) if has_bias and is_centred else None
    norm = AddLayerNorm(weight, bias, size, EPS) if is_centred else AddRMSNorm(weight, size, EPS)
    expected = by_formula(x, weight, EPS, bias, is_centred)
    alone, same = norm(x, None)
    assert same is x
    assert_close(alone, expected)
    total = x + residual
    normed, found = norm(x, residual)
    assert torch.equal(found, total)
    assert_close(normed, by_formula(total, weight, EPS, bias, is_centred))


NORMS = pytest.mark.parametrize("norm_of", [rms_norm, layer_norm])


@NORMS
def test_the_sum_and_its_norm_lie_where_the_inputs_did(norm_of):
    x, residual, weight = numbers(3, 40), numbers(3, 40, seed=1), numbers(40, seed=2)
    normed, total = norm_of(weight)(x, residual)
    assert (normed.data_ptr(), total.data_ptr()) == (x.data_ptr(), residual.data_ptr())


@NORMS
def test_inputs_whose_rows_lie_apart_stay_as_they_are(norm_of):
    x, residual, weight = numbers(3, 80), numbers(3, 80, seed=1), numbers(40, seed=2)
    normed, total = norm_of(weight)(x[:, 40:], residual[:, :40])
    assert torch.equal(total, x[:, 40:] + residual[:, :40])
    assert_close(normed, by_formula(total, weight, centred=norm_of is layer_norm))
    assert torch.equal(x, numbers(3, 80))
    assert torch.equal(residual, numbers(3, 80, seed=1))


@pytest.mark.parametrize("eps", [1e-6, 0.5])
@NORMS
def test_eps_is_added_to_the_mean_square(norm_of, eps):
    x, weight = numbers(2, 48, spread=0.1), numbers(48, seed=1)
    found = norm_of(weight, eps=eps)(x, None)[0]
    assert_close(found, by_formula(x, weight, eps, centred=norm_of is layer_norm))


@pytest.mark.parametrize("size", [1e-25, 1e-15, 1e15, 1e25])
@NORMS
def test_very_small_and_very_large_numbers_keep_their_direction(norm_of, size):
    x, weight = numbers(2, 64) * size, torch.ones(64)
    eps = 0.0 if size < 1 else EPS
    found = norm_of(weight, eps=eps)(x, None)[0]
    assert_close(found, by_formula(x, weight, eps, centred=norm_of is layer_norm))


def test_the_spread_of_numbers_far_from_zero_is_not_lost():
    x = numbers(3, 300) + 1000
    found = layer_norm(torch.ones(300))(x, None)[0].double()
    torch.testing.assert_close(found, by_formula(x, None, centred=True), rtol=1e-4, atol=1e-4)


def test_a_row_of_equal_numbers_becomes_the_bias():
    bias = numbers(40)
    found = layer_norm(torch.ones(40), bias)(torch.full((2, 40), 3.0), None)[0]
    assert torch.equal(found, bias.expand(2, 40))


def heads_norm(weight: Tensor, **options) -> GroupNorms:
    num_heads, size = weight.shape
    return GroupNorms(weight, (num_heads, size), [size] * num_heads, EPS, **options)


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("size", [1, 8, 20, 64, 128])
def test_heads_have_norms_of_their_own_and_tokens_may_lie_apart(size, is_centred):
    def expected(heads: Tensor, weight: Tensor) -> Tensor:
        return by_formula(heads, weight, centred=is_centred)

    heads, weight = numbers(5, 9, size)[:, 1:7], numbers(6, size, seed=1)
    normed = heads_norm(weight, is_centred=is_centred)(heads)
    assert normed.is_contiguous()
    assert_close(normed, expected(heads, weight))
    turned = heads.contiguous().transpose(0, 1)[:6]
    weight = numbers(5, size, seed=1)
    assert_close(heads_norm(weight, is_centred=is_centred)(turned), expected(turned, weight))


@pytest.mark.parametrize("is_centred", [False, True])
def test_heads_may_be_normalised_where_they_are_and_their_neighbours_stay(is_centred):
    rows, weight = numbers(5, 9, 20), numbers(6, 20, seed=1)
    heads_norm(weight, is_centred=is_centred).in_place(rows[:, 1:7])
    given = numbers(5, 9, 20)
    assert_close(rows[:, 1:7], by_formula(given[:, 1:7], weight, centred=is_centred))
    assert torch.equal(rows[:, ::8][:, 0], given[:, 0])
    assert torch.equal(rows[:, 7:], given[:, 7:])


def test_groups_may_have_several_heads_and_different_sizes():
    rows, weight = numbers(5, 9, 20), numbers(6, 20, seed=1)
    norm = GroupNorms(weight, (6, 20), [80, 40], EPS)
    heads = numbers(5, 9, 20)[:, 1:7]
    expected = torch.cat(
        (
            by_formula(heads[:, :4].flatten(1), weight[:4].flatten()),
            by_formula(heads[:, 4:].flatten(1), weight[4:].flatten()),
        ),
        1,
    ).view(5, 6, 20)
    assert_close(norm(rows[:, 1:7]), expected)
    norm.in_place(rows[:, 1:7])
    assert_close(rows[:, 1:7], expected)


def test_squares_may_be_summed_with_those_of_other_devices():
    """Two devices, each with two query heads and the same key head."""
    q, k, weight = numbers(5, 4, 20), numbers(5, 1, 20, seed=1), numbers(5, 20, seed=2)
    devices = [torch.cat((q[:, 2 * rank : 2 * rank + 2], k), 1) for rank in range(2)]
    weights = [torch.cat((weight[2 * rank : 2 * rank + 2], weight[4:])) for rank in range(2)]
    norms = [GroupNorms(one, (3, 20), [40, 20], EPS, counts=[80, 40]) for one in weights]
    squares = sum(norm.squares(heads) for norm, heads in zip(norms, devices, strict=True))
    for norm, heads in zip(norms, devices, strict=True):
        norm.scale(heads, squares)
    found = torch.cat((devices[0][:, :2], devices[1][:, :2]), 1).flatten(1)
    assert_close(found, by_formula(q.flatten(1), weight[:4].flatten()))
    for heads in devices:
        assert_close(heads[:, 2], by_formula(k[:, 0], weight[4]))


def test_heads_without_a_weight_are_only_normalised():
    heads = numbers(5, 3, 20)
    assert_close(GroupNorms(None, (3, 20), [20] * 3, EPS)(heads), by_formula(heads, None))


def test_a_row_of_nan_affects_no_other_row():
    for norm in (rms_norm(numbers(40, seed=1)), layer_norm(numbers(40, seed=1))):
        x = numbers(3, 40)
        expected = norm(x, None)[0]
        x[1, 5] = torch.nan
        found = norm(x, None)[0]
        assert found[1].isnan().all()
        assert torch.equal(found[::2], expected[::2])


@pytest.mark.parametrize("size", [7, 16, 1000])
@NORMS
def test_a_row_is_the_same_in_any_batch_and_by_any_number_of_threads(norm_of, size):
    x, residual, weight = numbers(200, size), numbers(200, size, seed=1), numbers(size, seed=2)
    norm = norm_of(weight)
    heads = heads_norm(weight[None], is_centred=norm_of is layer_norm)
    whole, by_head = norm(x.clone(), residual.clone())[0], heads(x[:, None])
    for row in (0, 100, 199):
        one = slice(row, row + 1)
        assert torch.equal(norm(x[one].clone(), residual[one].clone())[0][0], whole[row])
        assert torch.equal(heads(x[one, None])[0], by_head[row])


@pytest.mark.parametrize("threads", [1, 2, 3])
@NORMS
def test_threads_change_nothing(monkeypatch, norm_of, threads):
    is_centred = norm_of is layer_norm
    x, residual, weight = numbers(70, 3000), numbers(70, 3000, seed=1), numbers(3000, seed=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    normed, total = norm_of(weight)(x.clone(), residual.clone())
    assert torch.equal(total, x + residual)
    assert_close(normed, by_formula(total, weight, centred=is_centred))
    heads, weight = x.view(70, 30, 100), weight.view(30, 100)
    found = heads_norm(weight, is_centred=is_centred)(heads)
    assert_close(found, by_formula(heads, weight, centred=is_centred))


def test_of_no_rows_there_is_nothing():
    x = numbers(0, 64)
    for norm in (rms_norm(torch.ones(64)), layer_norm(torch.ones(64))):
        normed, total = norm(x, x)
        assert normed.shape == total.shape == (0, 64)
    assert heads_norm(torch.ones(2, 8))(numbers(0, 2, 8)).shape == (0, 2, 8)


def test_only_weights_that_can_be_read_are_bound():
    for weight in (torch.ones(4, dtype=torch.bfloat16), torch.ones(8)[::2]):
        with pytest.raises(ValueError, match="contiguous float32 on the CPU"):
            rms_norm(weight)
        with pytest.raises(ValueError, match="contiguous float32 on the CPU"):
            layer_norm(torch.ones(4), weight)
    with pytest.raises(ValueError, match="contiguous float32 on the CPU"):
        heads_norm(torch.ones(4, 2).mT)


@pytest.mark.parametrize("x", [torch.ones(2, 5), torch.ones(2, 4, dtype=torch.bfloat16)], ids=str)
def test_rows_of_another_type_or_width_are_refused(x):
    norm, good = rms_norm(torch.ones(4)), torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"rows must be float32 \[\.\.\., 4\], got"):
        norm(x, None)
    with pytest.raises(ValueError, match=r"the residual must be float32 \[2, 4\], got"):
        norm(good, x)
    with pytest.raises(ValueError, match=r"heads must be float32 \[T, 3, 4\], got"):
        heads_norm(torch.ones(3, 4))(x.unsqueeze(1).expand(-1, 3, -1))


def test_heads_that_lie_apart_are_not_normalised_where_they_are():
    norm = heads_norm(torch.ones(3, 4))
    with pytest.raises(ValueError, match="heads must lie one after the other, got strides"):
        norm.in_place(torch.ones(2, 6, 4)[:, ::2])
    with pytest.raises(ValueError, match=r"rows must be float32 \[\.\.\., 3\], got"):
        norm.scale(torch.ones(2, 3, 4), torch.ones(2, 2))


def test_what_the_program_calls_its_default_type_does_not_matter():
    heads = numbers(3, 2, 16)
    norm = heads_norm(torch.ones(2, 16))
    expected = norm(heads), norm.squares(heads)
    torch.set_default_dtype(torch.float64)
    try:
        found = norm(heads), norm.squares(heads)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
