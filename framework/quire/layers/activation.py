"""Activations of an MLP: of each element, and of a gate times the up projection.

torch computes the last few elements of a block with other instructions than the rest, and SiLU and
GELU may differ between the two by a bit. So batch-invariant mode builds them from exp, tanh, erf
and expm1, which torch computes alike for every element, and from operations that IEEE 754 rounds
exactly. The kernels compute every element alike in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from quire.errors import UnsupportedModelError
from quire.layers.activation_names import activation_name
from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.native.layer_kernels import cpu_activations

GELU_CUBE = 0.044715
QUICK_GELU_SLOPE = 1.702

Function = Callable[[Tensor], Tensor]


class Activation(Layer):
    """Activation of each element, without learned coefficients.

    Args:
        name: Name in a Hugging Face config: a key of `activation_names.ACTIVATIONS`.
        context: Settings to build the layer with.
    """

    def __init__(self, name: str, context: LayerContext) -> None:
        super().__init__()
        self.name = activation_name(name)
        self.function = _function(self.name, context.batch_invariant)
        if context.kernels == "triton":
            from quire.kernels.activations import activate  # loads Triton

            self.function = partial(activate, name=self.name)
        self.is_native = context.kernels == "native"

    def finish_loading(self) -> None:
        """Bind the native kernel, if layers run native kernels."""
        if self.is_native:
            self.function = cpu_activations.ElementActivation(self.name)

    def forward(self, x: Tensor) -> Tensor:
        """Return `activation(x)`, `[T, n] -> [T, n]`; `x` may be overwritten."""
        return self.function(x)


class GatedActivation(Layer):
    """Activation of the gate times the up projection (Shazeer, 2020): SwiGLU, GeGLU and others.

    Args:
        name: Name in a Hugging Face config: a key of `activation_names.ACTIVATIONS`.
        context: Settings to build the layer with.
    """

    def __init__(self, name: str, context: LayerContext) -> None:
        super().__init__()
        self.name = activation_name(name)
        self.function = _function(self.name, context.batch_invariant)
        self.kernel: Function | None = None
        if context.kernels == "triton":
            from quire.kernels.activations import activate_gate  # loads Triton

            self.kernel = partial(activate_gate, name=self.name)
        self.is_native = context.kernels == "native"

    def finish_loading(self) -> None:
        """Bind the native kernel, if layers run native kernels."""
        if self.is_native:
            self.kernel = cpu_activations.GateActivation(self.name)

    def forward(self, gate_up: Tensor) -> Tensor:
        """Return `activation(gate) * up`: `[T, 2 * n] -> [T, n]`, the gate first."""
        if self.kernel is not None:
            return self.kernel(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return self.function(gate).mul_(up)


class SiluAndMul(GatedActivation):
    """SwiGLU: SiLU of the gate times the up projection."""

    def __init__(self, context: LayerContext) -> None:
        super().__init__("silu", context)


class GeluTanhAndMul(GatedActivation):
    """GeGLU with the tanh approximation of the GELU."""

    def __init__(self, context: LayerContext) -> None:
        super().__init__("gelu_tanh", context)


class XIELU(Layer):
    """The activation xIELU (Huang and Schlag, 2024), with coefficients of the checkpoint (Apertus).

    For x > 0 it is `a * x * x + beta * x`, and otherwise `b * (expm1(min(x, eps)) - x) + beta * x`,
    with a = softplus(alpha_p) and b = beta + softplus(alpha_n).

    Attributes:
        coefficients: a, b, beta and eps: `[4]` float32, from `finish_loading` on.
    """

    alpha_p: Tensor  # [1]
    alpha_n: Tensor  # [1]
    beta: Tensor  # []
    eps: Tensor  # []

    def __init__(self, context: LayerContext) -> None:
        super().__init__()
        for name in ("alpha_p", "alpha_n"):
            self.register_parameter(name, frozen((1,), torch.float32, context.device))
        self._constants = {"beta": 0.5, "eps": -1e-6}
        self.coefficients = torch.zeros(4, device=context.device)
        self.kernel: Function | None = None
        self.kernels = context.kernels

    def optional_weights(self, path: str) -> Mapping[str, str]:
        """Return the names of the constants, which transformers stores as buffers."""
        return {f"{path}.{name}": name for name in self._constants}

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[1]` for a learned coefficient, and `[]` for a constant."""
        del part
        return () if parameter in self._constants else (1,)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy a coefficient."""
        if parameter in self._constants:
            self._constants[parameter] = float(tensor)
        else:
            super().load_weight(parameter, tensor, part)

    def finish_loading(self) -> None:
        """Compute the coefficients, and bind the kernel if layers run kernels."""
        beta, eps = self._constants["beta"], self._constants["eps"]
        learned = (functional.softplus(self.alpha_p), functional.softplus(self.alpha_n) + beta)
        self.coefficients[:2] = torch.cat(learned)
        self.coefficients[2], self.coefficients[3] = beta, eps
        self.kernel = self._kernel(self.coefficients.tolist())

    def forward(self, x: Tensor) -> Tensor:
        """Return `xielu(x)`, `[T, n] -> [T, n]`; `x` may be overwritten."""
        if self.kernel is not None:
            return self.kernel(x)
        a, b, beta, eps = self.coefficients
        wide = x.float()
        negative = (torch.minimum(wide, eps).expm1_() - wide) * b
        return torch.where(wide > 0, a * wide * wide, negative).add_(beta * wide).to(x.dtype)

    def _kernel(self, coefficients: Sequence[float]) -> Function | None:
        if self.kernels == "native":
            return cpu_activations.ElementActivation("xielu", coefficients)
        if self.kernels == "triton":
            from quire.kernels.activations import activate  # loads Triton

            return partial(activate, name="xielu", coefficients=coefficients)
        return None


def make_activation(
    name: str, *, is_gated: bool, context: LayerContext
) -> Activation | GatedActivation | XIELU:
    """Return the layer of an activation.

    Args:
        name: Name in a Hugging Face config: a key of `activation_names.ACTIVATIONS`.
        is_gated: Whether the layer's input is the gate and the up projection.
        context: Settings to build the layer with.

    Raises:
        UnsupportedModelError: quire does not have the activation, or not with a gate.
    """
    if is_gated:
        return GatedActivation(name, context)
    return XIELU(context) if activation_name(name) == "xielu" else Activation(name, context)


def _function(name: str, batch_invariant: bool) -> Function:
    functions = (FUNCTIONS | INVARIANT) if batch_invariant else FUNCTIONS
    if name not in functions:
        raise UnsupportedModelError(f"activation {name!r} is supported without a gate only")
    return functions[name]


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.sigmoid(QUICK_GELU_SLOPE * wide)).to(x.dtype)


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x).square_()


def _gated_by_sigmoid(x: Tensor, slope: float) -> Tensor:
    """Return `x * sigmoid(slope * x)`, each element alike."""
    wide = x.float()
    return wide.div(wide.mul(-slope).exp_().add_(1)).to(x.dtype)


def _invariant_silu(x: Tensor) -> Tensor:
    return _gated_by_sigmoid(x, 1.0)


def _invariant_quick_gelu(x: Tensor) -> Tensor:
    return _gated_by_sigmoid(x, QUICK_GELU_SLOPE)


def _invariant_gelu(x: Tensor) -> Tensor:
    wide = x.float()
    return wide.mul(math.sqrt(0.5)).erf_().add_(1).mul_(wide).mul_(0.5).to(x.dtype)


def _invariant_gelu_tanh(x: Tensor) -> Tensor:
    wide = x.float()
    inner = (wide * wide).mul_(wide).mul_(GELU_CUBE).add_(wide).mul_(math.sqrt(2 / math.pi))
    return inner.tanh_().add_(1).mul_(wide).mul_(0.5).to(x.dtype)


FUNCTIONS: dict[str, Function] = {
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": functional.relu,
    "relu2": _relu2,
    "silu": functional.silu,
}
INVARIANT: dict[str, Function] = {
    "gelu": _invariant_gelu,
    "gelu_tanh": _invariant_gelu_tanh,
    "quick_gelu": _invariant_quick_gelu,
    "silu": _invariant_silu,
}
