"""The emulator of an Arm processor: calls use the memory of this process, and faults are errors."""

import pytest
import torch
from native_libraries import ARM, SETS_AND_ARM, use_set

from quire.machine import instruction_sets
from quire.native.layer_kernels import libraries

ON_ARM = [case for case in SETS_AND_ARM if ARM in getattr(case, "values", ())]


@pytest.fixture(params=ON_ARM)
def experts(request, monkeypatch):
    use_set(monkeypatch, libraries, request.param, "EXPERTS")
    return libraries.EXPERTS.load()


def test_the_processor_of_a_test_is_an_arm(experts):
    assert instruction_sets.here().name == "neon"
    assert "asimddp" in instruction_sets.cpu_flags()


def test_floats_and_integers_arrive_in_their_registers(experts):
    x, out = torch.linspace(-9, 9, 40).view(2, 20), torch.zeros(2, 10)
    experts.clamped_swiglu(x.data_ptr(), out.data_ptr(), 2, 10, 1.5, 4.0, 1)
    gate, up = x[:, :10].clamp(max=4), x[:, 10:].clamp(-4, 4)
    torch.testing.assert_close(out, (up + 1) * gate * torch.sigmoid(1.5 * gate))


def test_a_null_pointer_is_an_error(experts):
    with pytest.raises(RuntimeError, match="there is no memory at 0x"):
        experts.clamped_swiglu(0, 0, 2, 10, 1.5, 4.0, 1)
