"""The activations in one launch, against torch in float64."""

import pytest
import torch
from kernel_device import DEVICE
from torch import Tensor
from torch.nn import functional

from quire.kernels.gated_activation import gelu_tanh_and_mul, silu_and_mul

# Triton's interpreter rounds to bfloat16 towards zero, so the last bit may differ there.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def gelu(gate: Tensor) -> Tensor:
    return functional.gelu(gate, approximate="tanh")


ACTIVATIONS = [(silu_and_mul, functional.silu), (gelu_tanh_and_mul, gelu)]


def numbers(*shape: int, spread: float = 3.0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return values.to(DEVICE) * spread


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 5, 112, 1024, 2500])
@pytest.mark.parametrize(("kernel", "activation"), ACTIVATIONS)
def test_the_gate_stands_first_and_is_activated(kernel, activation, size, dtype):
    gate_up = numbers(3, 2 * size).to(dtype)
    out = kernel(gate_up)
    gate, up = gate_up.double().chunk(2, -1)
    assert out.dtype is dtype
    assert out.shape == (3, size)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        out.double(), activation(gate) * up, rtol=tolerance, atol=tolerance / 4
    )


@pytest.mark.parametrize(("kernel", "activation"), ACTIVATIONS)
def test_gates_far_from_zero_are_shut_or_open(kernel, activation):
    gate = torch.tensor([[-1e10, -3e4, -100.0, -0.0, 100.0, 3e4]], device=DEVICE)
    out = kernel(torch.cat((gate, torch.full_like(gate, 2.0)), 1))
    assert out[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 200.0, 6e4], abs=1e-30)


@pytest.mark.parametrize(("kernel", "activation"), ACTIVATIONS)
def test_nan_stays_nan_and_affects_no_other_element(kernel, activation):
    gate_up = numbers(2, 20)
    expected = kernel(gate_up)
    gate_up[0, 3] = gate_up[1, 14] = torch.nan
    out = kernel(gate_up)
    assert out.isnan().nonzero().tolist() == [[0, 3], [1, 4]]
    assert torch.equal(out[~out.isnan()], expected[~out.isnan()])


@pytest.mark.parametrize(("kernel", "activation"), ACTIVATIONS)
def test_of_no_rows_there_is_nothing(kernel, activation):
    assert kernel(numbers(0, 20)).shape == (0, 10)
