"""Gated activations against the formulas."""

import math

import torch
from model_parts import CONTEXT

from quire.layers import GeluTanhAndMul, SiluAndMul


def halves() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gate_up = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    return gate_up, gate_up[:, :5].double(), gate_up[:, 5:].double()


def test_the_first_half_is_the_gate():
    gate_up, gate, up = halves()
    expected = (gate / (1 + (-gate).exp()) * up).float()
    torch.testing.assert_close(SiluAndMul(CONTEXT)(gate_up), expected)


def test_the_gelu_is_the_approximate_one():
    gate_up, gate, up = halves()
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    expected = (0.5 * gate * (1 + inner.tanh()) * up).float()
    torch.testing.assert_close(GeluTanhAndMul(CONTEXT)(gate_up), expected)
