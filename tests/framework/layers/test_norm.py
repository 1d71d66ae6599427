"""Norms, against the formula in float64."""

from dataclasses import replace

import pytest
import torch
from kernel_device import BY_TORCH_OR_KERNEL
from model_parts import CONTEXT
from torch import Tensor

from quire.layers import QKNorm, RMSNorm


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


def test_query_and_key_heads_have_norms_of_their_own():
    norm = QKNorm(3, 2, 8, 1e-6, CONTEXT)
    q_weight, k_weight = numbers(8, seed=1), numbers(8, seed=2)
    norm.load_weight("weight", k_weight, "k_norm")
    norm.load_weight("weight", q_weight, "q_norm")
    qk = numbers(4, 5, 8)
    normed = norm(qk)
    torch.testing.assert_close(normed[:, :3], by_formula(qk[:, :3], q_weight, 1e-6))
    torch.testing.assert_close(normed[:, 3:], by_formula(qk[:, 3:], k_weight, 1e-6))


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


def test_query_and_key_norms_take_the_offset_too():
    for dtype in (torch.float32, torch.bfloat16):
        norm = QKNorm(1, 1, 8, 1e-6, replace(CONTEXT, dtype=dtype), weight_offset=1.0)
        norm.load_weight("weight", numbers(8, seed=1), "q_norm")
        norm.load_weight("weight", numbers(8, seed=2), "k_norm")
        qk = numbers(4, 2, 8).to(dtype)
        expected = by_formula(qk, 1 + torch.stack((numbers(8, seed=1), numbers(8, seed=2))), 1e-6)
        torch.testing.assert_close(norm(qk), expected.to(dtype))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_native_norms_are_the_same(offset):
    x, residual, qk = numbers(3, 40), numbers(3, 40, seed=2), numbers(3, 5, 8)
    results = []
    for kernels in ("torch", "native"):
        context = replace(CONTEXT, kernels=kernels)
        rows = RMSNorm(40, 1e-6, context, weight_offset=offset)
        heads = QKNorm(3, 2, 8, 1e-6, context, weight_offset=offset)
        rows.load_weight("weight", numbers(40, seed=1), "norm")
        heads.load_weight("weight", numbers(8, seed=3), "q_norm")
        heads.load_weight("weight", numbers(8, seed=4), "k_norm")
        for norm in (rows, heads):
            norm.finish_loading()
            assert (norm.kernel is not None) == (kernels == "native")
        results.append((*rows(x.clone(), residual.clone()), rows(x)[0], heads(qk)))
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
