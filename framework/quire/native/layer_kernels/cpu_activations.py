"""Activations for CPUs, in C++: of each element, and of a gate times the up projection.

Each object binds its function and constants beforehand, so that a call passes the rest only.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, c_float, c_int32
from typing import ClassVar

import torch
from torch import Tensor

from quire.native.layer_kernels import libraries
from quire.native.layer_kernels.cpu_layers import wrong_rows

FUNCTIONS = ("silu", "gelu_tanh", "gelu", "relu", "relu2", "quick_gelu", "xielu")
NUM_COEFFICIENTS = 4


class _Activation(Structure):
    """The C struct `Activation` of the library."""

    _fields_: ClassVar = [
        ("function", c_int32),
        ("threads", c_int32),
        ("coefficients", c_float * NUM_COEFFICIENTS),
    ]


class ElementActivation:
    """Activation of each element, in place.

    Args:
        name: Function, one of `FUNCTIONS`.
        coefficients: Coefficients of `xielu`: a, b, beta and eps.
    """

    def __init__(self, name: str, coefficients: Sequence[float] = ()) -> None:
        self._activate = libraries.LAYERS.load().activate
        self._constants = _constants(name, coefficients)
        self._address = addressof(self._constants)

    def __call__(self, x: Tensor) -> Tensor:
        """Return `activation(x)` in the memory of `x`, or in new memory if `x` is a view with gaps.

        Raises:
            ValueError: The dtype is not float32.
        """
        if x.dtype != torch.float32:
            raise wrong_rows(x, x.shape[-1])
        out = x.contiguous()
        pointer = out.data_ptr()
        self._activate(self._address, pointer, pointer, out.numel())
        return out


class GateActivation:
    """The gate's activation times the up projection.

    Args:
        name: Function, one of `FUNCTIONS`.
        coefficients: As in `ElementActivation`.
    """

    def __init__(self, name: str, coefficients: Sequence[float] = ()) -> None:
        self._activate = libraries.LAYERS.load().activate_gate
        self._constants = _constants(name, coefficients)
        self._address = addressof(self._constants)

    def __call__(self, gate_up: Tensor) -> Tensor:
        """Return `activation(gate) * up`: `[T, 2 * n] -> [T, n]` float32, the gate first.

        Raises:
            ValueError: The dtype is not float32, or the width is odd.
        """
        num_rows, width = gate_up.shape
        if gate_up.dtype != torch.float32 or width % 2:
            raise wrong_rows(gate_up, width + width % 2)
        rows = gate_up.contiguous()
        size = width // 2
        out = torch.empty(num_rows, size, dtype=torch.float32)
        self._activate(self._address, rows.data_ptr(), out.data_ptr(), num_rows, size)
        return out


def _constants(name: str, coefficients: Sequence[float]) -> _Activation:
    values = (c_float * NUM_COEFFICIENTS)(*coefficients)
    return _Activation(FUNCTIONS.index(name), torch.get_num_threads(), values)
