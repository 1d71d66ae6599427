"""Gated activations against the formulas."""

import math
from dataclasses import replace

import pytest
import torch
from kernel_device import BY_TORCH_OR_KERNEL
from model_parts import CONTEXT

from quire.layers import GeluTanhAndMul, SiluAndMul


def halves() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gate_up = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    return gate_up, gate_up[:, :5].double(), gate_up[:, 5:].double()


@BY_TORCH_OR_KERNEL
def test_the_first_half_is_the_gate(context):
    gate_up, gate, up = halves()
    expected = (gate / (1 + (-gate).exp()) * up).float()
    torch.testing.assert_close(SiluAndMul(context)(gate_up), expected)


@BY_TORCH_OR_KERNEL
def test_the_gelu_is_the_approximate_one(context):
    gate_up, gate, up = halves()
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    expected = (0.5 * gate * (1 + inner.tanh()) * up).float()
    torch.testing.assert_close(GeluTanhAndMul(context)(gate_up), expected)


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("layer_class", [SiluAndMul, GeluTanhAndMul])
def test_native_activations_are_the_same(layer_class, batch_invariant):
    context = replace(CONTEXT, batch_invariant=batch_invariant)
    native = layer_class(replace(context, kernels="native"))
    native.finish_loading()
    assert native.kernel is not None
    gate_up = halves()[0]
    torch.testing.assert_close(native(gate_up), layer_class(context)(gate_up))
