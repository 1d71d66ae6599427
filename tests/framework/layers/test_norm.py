"""Norms, against the formula in float64."""

from dataclasses import replace

import pytest
import torch
from kernel_device import BY_TORCH_OR_KERNEL
from model_parts import CONTEXT
from torch import Tensor

from quire.layers import LayerNorm, RMSNorm


def by_formula(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return (x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight).float()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@BY_TORCH_OR_KERNEL
def test_half_precision_is_normalised_in_float32(context):
    norm = RMSNorm(64, 1e-6, replace(context, dtype=torch.bfloat16))
    norm.load_weight("weight", numbers(64, seed=1), "norm")
    x = (numbers(3, 64) * 300).bfloat16()
    expected = by_formula(x, numbers(64, seed=1).bfloat16(), 1e-6)
    torch.testing.assert_close(norm(x)[0].float(), expected, rtol=2**-6, atol=0)


@pytest.mark.parametrize("size", [1e-15, 1e15])
@BY_TORCH_OR_KERNEL
def test_very_small_and_very_large_numbers_keep_their_direction(context, size):
    norm = RMSNorm(64, 1e-38, context)
    norm.load_weight("weight", torch.ones(64), "norm")
    x = numbers(3, 64)
    torch.testing.assert_close(norm(x * size)[0], by_formula(x * size, torch.ones(64), 1e-38))


@pytest.mark.parametrize("eps", [1e-6, 0.5])
@BY_TORCH_OR_KERNEL
def test_the_norm_includes_the_residual(context, eps):
    norm = RMSNorm(16, eps, context)
    norm.load_weight("weight", numbers(16, seed=1), "norm")
    x, residual = numbers(3, 16), numbers(3, 16, seed=2)
    normed, total = norm(x, residual)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, by_formula(x + residual, numbers(16, seed=1), eps))


@BY_TORCH_OR_KERNEL
def test_without_a_residual_the_input_becomes_it(context):
    norm = RMSNorm(16, 1e-6, context)
    norm.load_weight("weight", torch.ones(16), "norm")
    x = numbers(3, 16)
    assert norm(x)[1] is x


@BY_TORCH_OR_KERNEL
def test_the_input_that_becomes_the_residual_is_not_changed(context):
    norm = RMSNorm(16, 1e-6, context)
    norm.load_weight("weight", torch.ones(16), "norm")
    x = numbers(3, 16)
    norm(x)
    assert torch.equal(x, numbers(3, 16))


@BY_TORCH_OR_KERNEL
def test_a_weight_kept_as_a_distance_from_one_is_added_to_it(context):
    norm = RMSNorm(16, 1e-6, context, weight_offset=1.0)
    norm.load_weight("weight", numbers(16, seed=1), "norm")
    x = numbers(3, 16)
    torch.testing.assert_close(norm(x)[0], by_formula(x, 1 + numbers(16, seed=1), 1e-6))


def test_a_distance_from_one_keeps_all_its_digits_in_half_precision():
    half = replace(CONTEXT, dtype=torch.bfloat16)
    distance = (numbers(64, seed=1) * 1e-3).bfloat16()  # one and this: the same in bfloat16
    x = numbers(3, 64).bfloat16()
    norm = RMSNorm(64, 1e-6, half, weight_offset=1.0)
    norm.load_weight("weight", distance, "norm")
    expected = by_formula(x, 1 + distance.double(), 1e-6).bfloat16()
    assert torch.equal(norm(x)[0], expected)
    assert norm(x)[0].dtype is torch.bfloat16


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_native_norms_are_the_same(offset):
    x, residual = numbers(3, 40), numbers(3, 40, seed=2)
    results = []
    for kernels in ("torch", "native"):
        norm = RMSNorm(40, 1e-6, replace(CONTEXT, kernels=kernels), weight_offset=offset)
        norm.load_weight("weight", numbers(40, seed=1), "norm")
        norm.finish_loading()
        assert (norm.kernel is not None) == (kernels == "native")
        results.append((*norm(x.clone(), residual.clone()), norm(x)[0]))
    torch.testing.assert_close(*results)


def test_weights_that_are_loaded_later_are_those_of_the_native_norm():
    norm = RMSNorm(8, 1e-6, replace(CONTEXT, kernels="native"))
    norm.finish_loading()
    norm.load_weight("weight", numbers(8, seed=1), "norm")
    x = numbers(2, 8)
    torch.testing.assert_close(norm(x)[0], by_formula(x, numbers(8, seed=1), 1e-6))


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_next_residual_is_the_sum_in_every_type(dtype, offset):
    norm = RMSNorm(16, 1e-6, replace(CONTEXT, dtype=dtype), weight_offset=offset)
    norm.load_weight("weight", torch.ones(16), "norm")
    x, residual = numbers(3, 16).to(dtype), numbers(3, 16, seed=2).to(dtype)
    _, total = norm(x.clone(), residual.clone())
    assert torch.equal(total, x + residual)


@BY_TORCH_OR_KERNEL
def test_without_a_weight_rows_are_only_normalised(context):
    norm = RMSNorm(16, 1e-6, context, has_weight=False)
    assert not list(norm.parameters())
    x, residual = numbers(3, 16), numbers(3, 16, seed=2)
    ones = torch.ones(16)
    torch.testing.assert_close(norm(x)[0], by_formula(x, ones, 1e-6))
    normed, total = norm(x.clone(), residual.clone())
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, by_formula(total, ones, 1e-6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rounds_before_weight", [False, True])
def test_the_row_is_rounded_before_the_product_with_the_weight_where_llama_does(
    dtype, rounds_before_weight
):
    norm = RMSNorm(
        640, 1e-6, replace(CONTEXT, dtype=dtype), rounds_before_weight=rounds_before_weight
    )
    weight, x = numbers(640, seed=1).to(dtype), numbers(3, 640).to(dtype)
    norm.load_weight("weight", weight, "norm")
    by_order = {
        False: by_formula(x, weight.double(), 1e-6).to(dtype),
        True: by_formula(x, torch.ones(640), 1e-6).to(dtype) * weight,
    }
    agreed = {
        order: (norm(x)[0] == expected).float().mean() for order, expected in by_order.items()
    }
    assert agreed[rounds_before_weight] > 0.99
    assert agreed[not rounds_before_weight] < 0.9


def layer_norm_by_formula(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return (centred / (variance + eps).sqrt() * weight + bias).float()


def loaded_layer_norm(size: int, eps: float, context, **options) -> LayerNorm:
    norm = LayerNorm(size, eps, context, **options)
    for name, _ in norm.named_parameters():
        norm.load_weight(name, numbers(size, seed=1 if name == "weight" else 5), "norm")
    norm.finish_loading()
    return norm


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
@BY_TORCH_OR_KERNEL
def test_a_layer_norm_has_the_parts_that_the_checkpoint_has(context, eps, has_weight, has_bias):
    norm = loaded_layer_norm(16, eps, context, has_weight=has_weight, has_bias=has_bias)
    assert {name for name, _ in norm.named_parameters()} == {
        name for name, is_there in (("weight", has_weight), ("bias", has_bias)) if is_there
    }
    weight = numbers(16, seed=1) if has_weight else torch.ones(16)
    bias = numbers(16, seed=5) if has_bias else torch.zeros(16)
    x, residual = numbers(3, 16) + 2, numbers(3, 16, seed=2)
    normed, total = norm(x.clone(), residual.clone())
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, layer_norm_by_formula(total, weight, bias, eps))
    alone, same = norm(x)
    assert same is x
    assert torch.equal(x, numbers(3, 16) + 2)
    torch.testing.assert_close(alone, layer_norm_by_formula(x, weight, bias, eps))


@BY_TORCH_OR_KERNEL
def test_the_offset_of_a_layer_norm_is_added_to_its_weight_alone(context):
    norm = loaded_layer_norm(16, 1e-6, context, weight_offset=1.0)
    x = numbers(3, 16)
    expected = layer_norm_by_formula(x, 1 + numbers(16, seed=1), numbers(16, seed=5), 1e-6)
    torch.testing.assert_close(norm(x)[0], expected)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_layer_norm_in_half_precision_is_rounded_once(offset):
    half = replace(CONTEXT, dtype=torch.bfloat16)
    norm = loaded_layer_norm(640, 1e-6, half, weight_offset=offset)
    weight, bias = numbers(640, seed=1), numbers(640, seed=5)
    if not offset:
        weight, bias = weight.bfloat16(), bias.bfloat16()
    x = numbers(3, 640).bfloat16()
    normed, total = norm(x.clone(), x.clone())
    assert torch.equal(total, x + x)
    assert normed.dtype is torch.bfloat16
    expected = layer_norm_by_formula(x + x, offset + weight.double(), bias.double(), 1e-6)
    assert (normed == expected.bfloat16()).float().mean() > 0.99


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
def test_native_layer_norms_are_the_same(has_weight, has_bias):
    x, residual = numbers(3, 40), numbers(3, 40, seed=2)
    results = []
    for kernels in ("torch", "native"):
        context = replace(CONTEXT, kernels=kernels)
        norm = loaded_layer_norm(40, 1e-6, context, has_weight=has_weight, has_bias=has_bias)
        assert (norm.kernel is not None) == (kernels == "native")
        results.append((*norm(x.clone(), residual.clone()), norm(x)[0]))
    torch.testing.assert_close(*results)
