"""Fused layers and logit masks for CPUs, in C++.

A small model's layer takes about a microsecond, and so does a Python call. So each object here
binds its function, weight and sizes beforehand, and a call passes the rest only.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Structure, addressof, c_float, c_int, c_int32, c_int64, c_long, c_void_p
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from quire.native.library import NativeLibrary

_GATE = (c_void_p, c_void_p, c_long, c_long, c_int)

SOURCE = Path(__file__).with_suffix(".cpp")
FUNCTIONS = {
    "rms_norm": (c_void_p, c_void_p, c_void_p, c_long),
    "add_rms_norm": (c_void_p, c_void_p, c_void_p, c_long),
    "head_rms_norm": (c_void_p, c_long, c_void_p, c_void_p, *(c_long,) * 3, c_float, c_int),
    "silu_and_mul": _GATE,
    "gelu_tanh_and_mul": _GATE,
    "mask_logits": (c_void_p, c_long, c_long, c_void_p, c_long, c_void_p, c_long, c_int),
}
LIBRARY = NativeLibrary("layers", SOURCE, FUNCTIONS, repeats=True)


def check_weight(weight: Tensor) -> None:
    """Check a weight whose memory the library reads at each call.

    Raises:
        ValueError: The weight is not contiguous float32 on the CPU.
    """
    is_plain = weight.dtype == torch.float32 and weight.device.type == "cpu"
    if not is_plain or not weight.is_contiguous():
        raise ValueError(
            f"the weight must be contiguous float32 on the CPU, got {weight.dtype} on "
            f"{weight.device} with strides {weight.stride()}"
        )


def wrong_rows(x: Tensor, size: int) -> ValueError:
    """Return the error for rows that are not float32 `[..., size]`."""
    return ValueError(f"rows must be float32 [..., {size}], got {x.dtype} {list(x.shape)}")


class _Norm(Structure):
    """The C struct `Norm` of the library."""

    _fields_: ClassVar = [
        ("weight", c_void_p),
        ("size", c_int64),
        ("eps", c_float),
        ("threads", c_int32),
    ]


class AddRMSNorm:
    """RMS norm of rows, with the residual addition if there is a residual.

    Args:
        weight: `[n]` float32; its memory must not move.
        eps: Term added to the mean square.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        check_weight(weight)
        library = LIBRARY.load()
        self._norm, self._add_and_norm = library.rms_norm, library.add_rms_norm
        self._weight = weight
        self._size = len(weight)
        self._constants = _Norm(weight.data_ptr(), self._size, eps, torch.get_num_threads())
        self._address = addressof(self._constants)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the norm of `x + residual`, and that sum; all `[..., n]` float32.

        With a residual both inputs are overwritten and returned: with few rows, most of the time is
        spent on fetching memory that is not in the caches, as newly allocated outputs would be.

        Raises:
            ValueError: Dtype or shape of an input is wrong.
        """
        if x.dtype != torch.float32 or x.shape[-1] != self._size:
            raise wrong_rows(x, self._size)
        rows = x.contiguous()
        num_rows = rows.numel() // self._size
        if residual is None:
            normed = torch.empty_like(rows)
            self._norm(self._address, rows.data_ptr(), normed.data_ptr(), num_rows)
            return normed, x
        if residual.dtype != torch.float32 or residual.shape != x.shape:
            raise ValueError(
                f"the residual must be float32 {list(x.shape)}, got {residual.dtype} "
                f"{list(residual.shape)}"
            )
        total = residual.contiguous()
        self._add_and_norm(self._address, rows.data_ptr(), total.data_ptr(), num_rows)
        return rows, total


class HeadRMSNorm:
    """RMS norm of each head, with a weight per head.

    Args:
        weight: `[H, D]` float32; its memory must not move.
        eps: Term added to the mean square.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        check_weight(weight)
        self._norm = LIBRARY.load().head_rms_norm
        self._weight = weight
        self._shape = tuple(weight.shape)
        self._pointer = weight.data_ptr()
        self._eps = eps
        self._threads = torch.get_num_threads()

    def __call__(self, heads: Tensor) -> Tensor:
        """Return the normed heads, `[T, H, D]` float32; the input may have any token stride.

        Raises:
            ValueError: Dtype, number of heads or head_dim are wrong.
        """
        num_tokens, num_heads, size = heads.shape
        if heads.dtype != torch.float32 or (num_heads, size) != self._shape:
            raise ValueError(
                f"heads must be float32 [T, {self._shape[0]}, {self._shape[1]}], got "
                f"{heads.dtype} {list(heads.shape)}"
            )
        if heads.stride()[1:] != (size, 1):
            heads = heads.contiguous()
        normed = torch.empty(heads.shape, dtype=torch.float32)
        self._norm(
            heads.data_ptr(), heads.stride(0), self._pointer, normed.data_ptr(),
            num_tokens, num_heads, size, self._eps, self._threads,
        )  # fmt: skip
        return normed


class GatedActivation:
    """The gate's activation times the up projection.

    Args:
        function: `silu_and_mul` or `gelu_tanh_and_mul` of the library.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._threads = torch.get_num_threads()

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
        self._function(rows.data_ptr(), out.data_ptr(), num_rows, size, self._threads)
        return out


class LogitMask:
    """Masking of logits by a bitmask with one bit per token."""

    def __init__(self) -> None:
        self._mask = LIBRARY.load().mask_logits
        self._threads = torch.get_num_threads()

    def __call__(
        self,
        logits: Tensor,  # [N, V] float32, in place; each row contiguous
        rows: Tensor,  # [M] int64, all different
        words: Tensor,  # [M, at least ceil(V / 32)] int32
    ) -> None:
        """Set the logits of row `rows[i]` to -inf where the bit in `words[i]` is 0.

        Raises:
            ValueError: Dtypes or shapes are wrong.
        """
        if logits.dtype != torch.float32:
            raise wrong_rows(logits, logits.shape[1])
        if rows.dtype != torch.int64 or words.dtype != torch.int32:
            raise ValueError(
                f"rows must be int64 and words int32, got {rows.dtype} and {words.dtype}"
            )
        if len(rows) != len(words) or words.shape[1] * 32 < logits.shape[1]:
            raise ValueError(
                f"{list(words.shape)} words do not match {len(rows)} rows with a vocabulary of "
                f"{logits.shape[1]}"
            )
        if logits.stride(1) != 1:
            raise ValueError("each row of the logits must be contiguous")
        rows, words = rows.contiguous(), words.contiguous()
        self._mask(
            logits.data_ptr(), logits.stride(0), logits.shape[1], rows.data_ptr(), len(rows),
            words.data_ptr(), words.shape[1], self._threads,
        )  # fmt: skip
