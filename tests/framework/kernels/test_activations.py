"""The activations in one launch, against torch in float64."""

import pytest
import torch
from kernel_device import DEVICE
from torch import Tensor
from transformers.activations import ACT2FN

from quire.kernels.activations import activate, activate_gate

# Triton's interpreter rounds to bfloat16 towards zero, so the last bit may differ there.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


NAMES = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
}
EACH = pytest.mark.parametrize("name", NAMES)


def reference(name: str, x: Tensor) -> Tensor:
    return ACT2FN[NAMES[name]](x.double())


def numbers(*shape: int, spread: float = 3.0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return values.to(DEVICE) * spread


def assert_close(ours: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance / 2)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 5, 112, 1024, 2500])
@EACH
def test_the_gate_stands_first_and_is_activated(name, size, dtype):
    gate_up = numbers(3, 2 * size).to(dtype)
    out = activate_gate(gate_up, name)
    gate, up = gate_up.chunk(2, -1)
    assert out.dtype is dtype
    assert out.shape == (3, size)
    assert_close(out, reference(name, gate) * up.double())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 112, 2500])
@EACH
def test_elements_are_activated_where_they_are(name, size, dtype):
    x = numbers(3, size).to(dtype)
    expected = reference(name, x)
    assert activate(x, name) is x
    assert_close(x, expected)


def test_a_view_with_gaps_stays_as_it_is():
    x = numbers(3, 80)
    assert_close(activate(x[:, 40:], "silu"), reference("silu", numbers(3, 80)[:, 40:]))
    assert torch.equal(x, numbers(3, 80))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_xielu_has_coefficients(dtype):
    a, b, beta, eps = 0.75, 0.625, 0.375, -(2.0**-10)
    x = torch.cat((numbers(3, 100), -torch.logspace(-6, 2, 33, device=DEVICE).expand(3, -1)), 1)
    x = x.to(dtype)
    wide = x.double()
    negative = (wide.clamp(max=eps).expm1() - wide) * b
    expected = torch.where(wide > 0, a * wide * wide, negative) + beta * wide
    assert_close(activate(x, "xielu", (a, b, beta, eps)), expected)


@EACH
def test_gates_far_from_zero_are_shut_or_open(name):
    gate = torch.tensor([[-1e10, -3e4, -100.0, -0.0, 100.0, 3e4]], device=DEVICE)
    out = activate_gate(torch.cat((gate, torch.full_like(gate, 2.0)), 1), name)
    expected = (2 * reference(name, gate)).float()
    assert out[0].tolist() == pytest.approx(expected[0].tolist(), rel=1e-6, abs=1e-30)


@EACH
def test_nan_stays_nan_and_affects_no_other_element(name):
    gate_up = numbers(2, 20)
    expected = activate_gate(gate_up, name)
    gate_up[0, 3] = gate_up[1, 14] = torch.nan
    out = activate_gate(gate_up, name)
    assert out.isnan().nonzero().tolist() == [[0, 3], [1, 4]]
    assert torch.equal(out[~out.isnan()], expected[~out.isnan()])


def test_of_no_rows_there_is_nothing():
    assert activate_gate(numbers(0, 20), "silu").shape == (0, 10)
    assert activate(numbers(0, 20), "gelu").shape == (0, 20)
