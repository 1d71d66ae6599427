"""Packed weight with the compiled product and row lookup."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.native.tracing import traceable
from quire_quantizations import linear_library as library
from quire_quantizations.formats import Format
from quire_quantizations.grouped_codes import GroupedCodes
from quire_quantizations.linear_library import WeightStruct

NUMBER_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in linear_packing.h


def _torch_memory(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


class PackedWeight:
    """Packed copy of a weight.

    Args:
        weight: Dense weight, `[out, in]`, on the CPU, whole or in slices one after another; or
            codes for a format that keeps them.
        weight_format: Format of the packed weight.
        allocate: Function that returns uint8 memory of a given size, aligned to a cache line.

    Attributes:
        weight_format: Format of the packed weight.
        memory: Packed bytes, `[bytes]` uint8.
        order: Index in x of each input of the packed weight, `[in]` int32; None: the same.

    Raises:
        NativeUnavailableError: The compiled kernels are not available.
    """

    def __init__(
        self,
        weight: Tensor | Sequence[Tensor] | GroupedCodes,
        weight_format: Format,
        allocate: Callable[[int], Tensor] = _torch_memory,
    ) -> None:
        if isinstance(weight, Tensor):
            weight = [weight]
        functions = library.library_of(weight_format).load()
        self._linear, self._rows = functions.linear, functions.rows
        self.weight_format = weight_format
        self.out_features, self.in_features = _shape(weight)
        self.order = weight.order if isinstance(weight, GroupedCodes) else None
        threads = torch.get_num_threads()
        self._struct = WeightStruct(
            weight_format.index,
            library.kind_of_products(weight_format),
            None,
            self.in_features,
            self.out_features,
            threads,
            None if self.order is None else self.order.data_ptr(),
        )
        self._address = ctypes.addressof(self._struct)
        self._wrong_index = ctypes.c_int64(-1)  # must outlive traced calls, which write to it
        self._check_found = traceable(self._check_wrong_index, "rows", repeats=True)
        num_bytes = ctypes.c_int64()
        functions.packed_bytes(self._address, ctypes.addressof(num_bytes))
        self.memory = allocate(num_bytes.value)
        self._struct.packed = self.memory.data_ptr()
        if isinstance(weight, GroupedCodes):
            functions.pack_codes(self._address, weight.address, self.memory.data_ptr())
        else:
            number_type = _number_type(weight)
            slices = [_with_whole_rows(dense.to(number_type)) for dense in weight]
            structs = (library.DenseSliceStruct * len(slices))(
                *(
                    library.DenseSliceStruct(dense.data_ptr(), len(dense), dense.stride(0))
                    for dense in slices
                )
            )
            at = ctypes.addressof(structs)
            functions.pack(self._address, at, NUMBER_TYPES[number_type], self.memory.data_ptr())

    def multiply(
        self,
        x: Tensor,  # [T, in] float32
        bias: Tensor | None = None,  # [out] float32
    ) -> Tensor:  # [T, out]
        """Compute `x @ weight.T + bias`.

        Raises:
            ValueError: `x` or `bias` has the wrong dtype or shape.
        """
        *counts, inputs = x.shape
        if x.dtype != torch.float32 or inputs != self.in_features:
            raise ValueError(
                f"x must be float32 with {self.in_features} columns, got {x.dtype} with {inputs}"
            )
        if bias is not None and (bias.dtype != torch.float32 or bias.shape != (self.out_features,)):
            raise ValueError(
                f"bias must be float32 [{self.out_features}], got {bias.dtype} {list(bias.shape)}"
            )
        x, bias = x.contiguous(), None if bias is None else bias.contiguous()
        out = x.new_empty(*counts, self.out_features)
        bias_at = None if bias is None else bias.data_ptr()
        num_rows = counts[0] if len(counts) == 1 else math.prod(counts)
        self._linear(self._address, x.data_ptr(), bias_at, out.data_ptr(), num_rows)
        return out

    def rows(
        self,
        indices: Tensor,  # [T]
    ) -> Tensor:  # [T, in]
        """Return rows of the weight in float32.

        Raises:
            IndexError: There is no such row.
        """
        indices = indices.to(torch.int64).contiguous()
        out = torch.empty(len(indices), self.in_features, dtype=torch.float32)
        wrong_at = ctypes.addressof(self._wrong_index)
        self._rows(self._address, indices.data_ptr(), len(indices), out.data_ptr(), wrong_at)
        self._check_found(indices)
        return out

    def _check_wrong_index(self, indices: Tensor) -> None:
        wrong = self._wrong_index.value
        if wrong >= 0:
            self._wrong_index.value = -1
            index = int(indices[wrong])
            raise IndexError(f"row {index} is out of range: there are {self.out_features} rows")


def _shape(weight: Sequence[Tensor] | GroupedCodes) -> tuple[int, int]:
    if isinstance(weight, GroupedCodes):
        return weight.shape[0], weight.shape[1]
    return sum(map(len, weight)), weight[0].shape[1]


def _number_type(slices: Sequence[Tensor]) -> torch.dtype:
    """Return the type in which slices are packed: float32 if they have several, or another."""
    types = {dense.dtype for dense in slices}
    return types.pop() if len(types) == 1 and types <= NUMBER_TYPES.keys() else torch.float32


def _with_whole_rows(dense: Tensor) -> Tensor:
    """Return a weight whose rows are without gaps; rows may have any distance."""
    return dense if dense.stride(1) == 1 else dense.contiguous()
