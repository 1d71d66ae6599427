"""The clamped gate in one launch, against torch in float64."""

import pytest
import torch
from kernel_device import DEVICE

from quire.kernels.clamped_gate import clamped_gate

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [1, 7, 1024, 2500])
def test_gate_and_up_are_clamped_before_they_are_multiplied(size, dtype):
    values = torch.randn(3, 2 * size, generator=torch.Generator().manual_seed(0)) * 4
    gate_up = values.to(DEVICE, dtype)
    gate, up = gate_up.double().chunk(2, -1)
    gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
    expected = (up + 1) * gate * (1.7 * gate).sigmoid()
    tolerance = TOLERANCE[dtype]
    out = clamped_gate(gate_up, 1.7, 2.0)
    assert out.dtype is dtype
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_nan_stays_nan():
    gate_up = torch.ones(2, 6, device=DEVICE)
    gate_up[0, 1] = gate_up[1, 5] = torch.nan
    assert clamped_gate(gate_up, 1.0, 3.0).isnan().nonzero().tolist() == [[0, 1], [1, 2]]


def test_no_rows_give_no_rows():
    assert clamped_gate(torch.empty(0, 8, device=DEVICE), 1.0, 1.0).shape == (0, 4)
