"""Gated activations of an MLP: activation of the gate times the up projection.

torch computes the last few elements of a block with other instructions than the rest, and SiLU and
GELU may differ between the two by a bit. So batch-invariant mode builds them from exp and tanh,
which torch computes alike for every element, and from operations that IEEE 754 rounds exactly. The
kernels compute every element alike in any case.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from quire.layers.context import LayerContext
from quire.layers.layer import Layer
from quire.native.layer_kernels import cpu_layers, libraries

GELU_CUBE = 0.044715


class GatedLinearUnit(Layer):
    """Base of the two activations below."""

    is_gelu: ClassVar[bool]  # otherwise SiLU

    def __init__(self, context: LayerContext) -> None:
        super().__init__()
        self.batch_invariant = context.batch_invariant
        self.kernel: Callable[[Tensor], Tensor] | None = None
        if context.kernels == "triton":
            from quire.kernels import gated_activation as kernels  # loads Triton

            self.kernel = kernels.gelu_tanh_and_mul if self.is_gelu else kernels.silu_and_mul
        self.is_native = context.kernels == "native"

    def finish_loading(self) -> None:
        """Bind the native kernel, if layers run native kernels."""
        if self.is_native:
            library = libraries.LAYERS.load()
            function = library.gelu_tanh_and_mul if self.is_gelu else library.silu_and_mul
            self.kernel = cpu_layers.GatedActivation(function)

    def forward(self, gate_up: Tensor) -> Tensor:
        """Return `activation(gate) * up`: `[T, 2 * n] -> [T, n]`."""
        if self.kernel is not None:
            return self.kernel(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return self._activate(gate).mul_(up)

    @abstractmethod
    def _activate(self, gate: Tensor) -> Tensor:
        """Return the activation in new memory."""


class SiluAndMul(GatedLinearUnit):
    """SwiGLU (Shazeer, 2020): SiLU of the gate times the up projection."""

    is_gelu = False

    def _activate(self, gate: Tensor) -> Tensor:
        if not self.batch_invariant:
            return functional.silu(gate)
        wide = gate.float()
        return wide.div(wide.neg().exp_().add_(1)).to(gate.dtype)


class GeluTanhAndMul(GatedLinearUnit):
    """GeGLU (Shazeer, 2020) with the tanh approximation of the GELU."""

    is_gelu = True

    def _activate(self, gate: Tensor) -> Tensor:
        if not self.batch_invariant:
            return functional.gelu(gate, approximate="tanh")
        wide = gate.float()
        inner = (wide * wide).mul_(wide).mul_(GELU_CUBE).add_(wide).mul_(math.sqrt(2 / math.pi))
        return inner.tanh_().add_(1).mul_(wide).mul_(0.5).to(gate.dtype)
