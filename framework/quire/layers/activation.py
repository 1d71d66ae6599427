"""Activations between the two halves of an MLP."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from quire.layers.layer import Layer


class SiluAndMul(Layer):
    """SwiGLU (Shazeer, 2020): the gate's SiLU times the up projection, which stands beside it."""

    def forward(self, gate_up: Tensor) -> Tensor:
        """Return `silu(gate) * up`: `[T, 2 * n] -> [T, n]`."""
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate).mul_(up)
