"""Norms of rows and of heads for CPUs, in C++.

A small model's layer takes about a microsecond, and so does a Python call. So each object here
binds its function, weight and sizes beforehand, and a call passes the rest only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import Structure, addressof, c_double, c_float, c_int32, c_int64, c_void_p
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from quire.native.layer_kernels import libraries
from quire.native.layer_kernels.cpu_layers import check_weight, wrong_rows


class _Norm(Structure):
    """The C struct `Norm` of the library."""

    _fields_: ClassVar = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("size", c_int64),
        ("eps", c_float),
        ("threads", c_int32),
    ]


class _RowNorm:
    """Norm of rows, with the residual addition if there is a residual.

    Args:
        functions: Function of the library without a residual, and the one with it.
        weight: `[size]` float32; its memory must not move. None: rows are only normalised.
        bias: `[size]` float32, as the weight; None: there is none.
        size: Elements per row.
        eps: Term added to the mean square or variance.
    """

    def __init__(
        self,
        functions: tuple[Callable[..., None], Callable[..., None]],
        weight: Tensor | None,
        bias: Tensor | None,
        size: int,
        eps: float,
    ) -> None:
        self._norm, self._add_and_norm = functions
        self._kept = (weight, bias)
        self._size = size
        pointers = map(_pointer, self._kept)
        self._constants = _Norm(*pointers, size, eps, torch.get_num_threads())
        self._address = addressof(self._constants)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the norm of `x + residual`, and that sum; all `[..., size]` float32.

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


class AddRMSNorm(_RowNorm):
    """RMS norm of rows; arguments as in `_RowNorm`."""

    def __init__(self, weight: Tensor | None, size: int, eps: float) -> None:
        library = libraries.LAYERS.load()
        super().__init__((library.rms_norm, library.add_rms_norm), weight, None, size, eps)


class AddLayerNorm(_RowNorm):
    """Layer norm of rows; arguments as in `_RowNorm`."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, size: int, eps: float) -> None:
        library = libraries.LAYERS.load()
        super().__init__((library.layer_norm, library.add_layer_norm), weight, bias, size, eps)


class _GroupNorm(Structure):
    """The C struct `GroupNorm` of the library."""

    _fields_: ClassVar = [
        ("weight", c_void_p),
        ("ends", c_void_p),
        ("counts", c_void_p),
        ("groups", c_int64),
        ("eps", c_float),
        ("is_centred", c_int32),
        ("threads", c_int32),
    ]


class GroupNorms:
    """Norms of each token's groups of elements: heads, or all query heads and all key heads.

    Args:
        weight: `[H, D]` float32; its memory must not move. None: groups are only normalised.
        shape: H and D.
        sizes: Elements of each group, `H * D` in all.
        eps: Term added to the mean square or variance.
        is_centred: Whether the norm is a layer norm; otherwise it is an RMS norm.
        counts: Elements of each group on all devices, for `squares` and `scale`; None: `sizes`.
    """

    def __init__(
        self,
        weight: Tensor | None,
        shape: tuple[int, int],
        sizes: Sequence[int],
        eps: float,
        *,
        is_centred: bool = False,
        counts: Sequence[int] | None = None,
    ) -> None:
        library = libraries.LAYERS.load()
        self._norm, self._square = library.norm_groups, library.square_groups
        self._scale = library.scale_groups
        self._weight, self._shape, self._size = weight, shape, shape[1]
        self._width = sum(sizes)
        self._num_groups = len(sizes)
        self._ends = (c_int64 * len(sizes))(*accumulate(sizes))
        self._counts = (c_double * len(sizes))(*(counts or sizes))
        self._constants = _GroupNorm(
            _pointer(weight),
            addressof(self._ends),
            addressof(self._counts),
            len(sizes),
            eps,
            is_centred,
            torch.get_num_threads(),
        )
        self._address = addressof(self._constants)

    def __call__(self, heads: Tensor) -> Tensor:
        """Return the normed heads in new memory, `[T, H, D]` float32.

        Tokens of the input may lie apart.

        Raises:
            ValueError: Dtype, number of heads or head_dim are wrong.
        """
        self._check(heads)
        if not self._has_adjacent_heads(heads):
            heads = heads.contiguous()
        normed = torch.empty(heads.shape, dtype=torch.float32)
        self._norm(
            self._address, heads.data_ptr(), heads.stride(0), normed.data_ptr(), self._width,
            len(heads),
        )  # fmt: skip
        return normed

    def in_place(self, heads: Tensor) -> None:
        """Normalise heads where they are, `[T, H, D]` float32; tokens may lie apart.

        Raises:
            ValueError: Dtype, number of heads, head_dim or strides are wrong.
        """
        self._check(heads, in_place=True)
        pointer, stride = heads.data_ptr(), heads.stride(0)
        self._norm(self._address, pointer, stride, pointer, stride, len(heads))

    def squares(self, heads: Tensor) -> Tensor:
        """Return the sum of each group's squares, `[T, groups]`; raises as `in_place` does."""
        self._check(heads, in_place=True)
        squares = torch.empty(len(heads), self._num_groups, dtype=torch.float32)
        self._square(
            self._address, heads.data_ptr(), heads.stride(0), squares.data_ptr(), len(heads)
        )
        return squares

    def scale(self, heads: Tensor, squares: Tensor) -> None:
        """Finish the RMS norm where the heads are, by the squares that all devices have summed.

        Raises:
            ValueError: Dtype, number of heads, head_dim or strides are wrong.
        """
        self._check(heads, in_place=True)
        if squares.shape != (len(heads), self._num_groups) or squares.dtype != torch.float32:
            raise wrong_rows(squares, self._num_groups)
        sums = squares.contiguous()
        self._scale(self._address, sums.data_ptr(), heads.data_ptr(), heads.stride(0), len(heads))

    def _check(self, heads: Tensor, *, in_place: bool = False) -> None:
        if heads.dtype != torch.float32 or heads.shape[1:] != self._shape:
            raise ValueError(
                f"heads must be float32 [T, {self._shape[0]}, {self._shape[1]}], got "
                f"{heads.dtype} {list(heads.shape)}"
            )
        if in_place and not self._has_adjacent_heads(heads):
            raise ValueError(
                f"a token's heads must lie one after the other, got strides {heads.stride()}"
            )

    def _has_adjacent_heads(self, heads: Tensor) -> bool:
        return heads.stride()[1:] == (self._size, 1)


def _pointer(vector: Tensor | None) -> Any:
    if vector is None:
        return None
    check_weight(vector)
    return vector.data_ptr()
