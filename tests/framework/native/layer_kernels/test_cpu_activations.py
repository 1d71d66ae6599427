"""C++ activations against transformers in float64, for every instruction set of this machine."""

import pytest
import torch
from native_libraries import SETS_AND_ARM, use_set
from torch import Tensor
from transformers.activations import ACT2FN

from quire.native.layer_kernels import libraries
from quire.native.layer_kernels.cpu_activations import (
    FUNCTIONS,
    ElementActivation,
    GateActivation,
)

SIZES = [1, 7, 8, 15, 16, 17, 64, 100, 1024, 5121]


@pytest.fixture(params=SETS_AND_ARM, autouse=True)
def _each_set(request, monkeypatch):
    use_set(monkeypatch, libraries, request.param, "LAYERS")


def numbers(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def assert_close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=1e-6)


NAMES = {"gelu_tanh": "gelu_pytorch_tanh"}
COEFFICIENTS = (0.75, 0.625, 0.375, -(2**-10))  # of xielu
EACH = pytest.mark.parametrize("name", FUNCTIONS)


def reference(name: str, x: Tensor) -> Tensor:
    if name != "xielu":
        return ACT2FN[NAMES.get(name, name)](x.double())
    a, b, beta, eps = COEFFICIENTS
    x = x.double()
    negative = (x.clamp(max=eps).expm1() - x) * b
    return torch.where(x > 0, a * x * x, negative) + beta * x


def gate(name: str) -> GateActivation:
    return GateActivation(name, COEFFICIENTS)


def element(name: str) -> ElementActivation:
    return ElementActivation(name, COEFFICIENTS)


@pytest.mark.parametrize("size", SIZES)
@EACH
def test_the_gate_stands_first_and_is_activated(name, size):
    gate_up = numbers(3, 2 * size, spread=3)
    first, up = gate_up.chunk(2, -1)
    assert_close(gate(name)(gate_up), reference(name, first) * up.double())


@pytest.mark.parametrize("size", SIZES)
@EACH
def test_elements_are_activated_where_they_are(name, size):
    x = numbers(3, size, spread=3)
    expected = reference(name, x)
    out = element(name)(x)
    assert out is x
    assert_close(out, expected)


def test_a_view_with_gaps_stays_as_it_is():
    x = numbers(3, 80)
    out = element("silu")(x[:, 40:])
    assert_close(out, reference("silu", numbers(3, 80)[:, 40:]))
    assert torch.equal(x, numbers(3, 80))


@pytest.mark.parametrize(("name", "units"), [("silu", 5), ("quick_gelu", 5), ("gelu", 8)])
def test_values_are_right_to_a_few_units_in_the_last_place(name, units):
    x = torch.linspace(-12, 12, 100_003)
    expected = reference(name, x)
    if name == "quick_gelu":
        slope = torch.tensor(1.702) * x  # as rounded to float32
        expected = x.double() * slope.double().sigmoid()
    if name == "gelu":
        expected = x.double() * torch.special.erfc(-x.double() * 0.5**0.5) / 2
    found = element(name)(x.clone()).double()
    error = ((found - expected) / expected)[expected != 0].abs()
    assert error.max() < units * 2**-24


def test_xielu_keeps_its_digits_near_zero():
    x = -torch.logspace(-6, 0, 1001)
    coefficients = (0.8, 1.0, 0.0, 0.0)  # expm1(x) - x
    found = ElementActivation("xielu", coefficients)(x.clone()).double() + x.double()
    torch.testing.assert_close(found, x.double().expm1(), rtol=1e-6, atol=0)


@EACH
def test_gates_far_from_zero_are_shut_or_open(name):
    x = torch.tensor([[-1e10, -3e4, -100.0, -0.0, 100.0, 3e4]])
    expected = reference(name, x).float()
    out = gate(name)(torch.cat((x, torch.full_like(x, 2.0)), 1))
    assert out[0].tolist() == pytest.approx((2 * expected)[0].tolist(), rel=1e-6, abs=1e-30)


@EACH
def test_nan_stays_nan_and_affects_no_other_element(name):
    gate_up = numbers(2, 40)
    expected = gate(name)(gate_up)
    gate_up[0, 3] = gate_up[1, 24] = torch.nan
    out = gate(name)(gate_up)
    assert out.isnan().nonzero().tolist() == [[0, 3], [1, 4]]
    assert torch.equal(out[~out.isnan()], expected[~out.isnan()])


@pytest.mark.parametrize("size", [7, 16, 1000, 1500])
@EACH
def test_a_number_is_the_same_wherever_it_stands(name, size):
    gate_up = numbers(200, 2 * size, spread=4)
    out, elements = gate(name)(gate_up), element(name)(gate_up.clone())
    for row in (0, 100, 199):
        assert torch.equal(gate(name)(gate_up[row : row + 1])[0], out[row])
        each = gate_up[row].view(2, size).t().contiguous()  # [size, 2]: a gate and its up
        assert torch.equal(gate(name)(each)[:, 0], out[row])
        assert torch.equal(element(name)(gate_up[row, 5:].clone()), elements[row, 5:])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(monkeypatch, threads):
    x = numbers(7, 6000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    first, up = x.chunk(2, -1)
    assert_close(gate("silu")(x), reference("silu", first) * up.double())
    assert_close(element("relu2")(x.clone()), reference("relu2", x))


def test_of_no_rows_there_is_nothing():
    assert gate("gelu")(numbers(0, 64)).shape == (0, 32)
    assert element("gelu")(numbers(0, 64)).shape == (0, 64)


def test_rows_of_another_type_or_width_are_refused():
    with pytest.raises(ValueError, match=r"rows must be float32 \[\.\.\., 4\], got torch.float64"):
        gate("silu")(torch.ones(2, 4).double())
    with pytest.raises(
        ValueError, match=r"rows must be float32 \[\.\.\., 4\], got torch.float32 \[2, 3\]"
    ):
        gate("silu")(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"rows must be float32 \[\.\.\., 4\], got torch.bfloat16"):
        element("silu")(torch.ones(2, 4).bfloat16())


def test_what_the_program_calls_its_default_type_does_not_matter():
    gate_up = numbers(3, 64)
    expected = gate("silu")(gate_up)
    torch.set_default_dtype(torch.float64)
    try:
        found = gate("silu")(gate_up)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)
