"""SwiGLU against the formula."""

import torch

from quire.layers import SiluAndMul


def test_the_first_half_is_the_gate():
    gate_up = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    gate, up = gate_up[:, :5].double(), gate_up[:, 5:].double()
    expected = (gate / (1 + (-gate).exp()) * up).float()
    torch.testing.assert_close(SiluAndMul()(gate_up), expected)
