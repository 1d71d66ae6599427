"""LoRA adapters of linear layers on CPUs, computed token by token in C++ (see `lora_stacks`)."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, byref, c_int, c_int64, c_long, c_void_p
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from quire.native.layer_kernels.cpu_layers import check_weight, wrong_rows
from quire.native.library import NativeLibrary

SOURCE = Path(__file__).with_suffix(".cpp")
FUNCTIONS = {"add_lora": (c_void_p, c_void_p, c_void_p, c_long, c_void_p, c_void_p, c_int)}
LIBRARY = NativeLibrary("adapters", SOURCE, FUNCTIONS)


class _Adapters(Structure):
    """The C struct `Adapters` of the library."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("a", "b", "spans", "outputs")),
        *((name, c_int64) for name in ("inputs", "rows", "max_rank", "slices")),
    ]


class AddLoRA:
    """Adapters of a linear layer, computed token by token: for few tokens of many adapters.

    Args:
        a: `[max_loras, rows, in]` float32, each adapter's slices concatenated; its memory must not
            move.
        b: `[max_loras, max_rank, out]` float32; the first rows of each slice's outputs are in use;
            its memory must not move.
        output_ends: Ends of the slices in the outputs.
    """

    def __init__(self, a: Tensor, b: Tensor, output_ends: Sequence[int]) -> None:
        check_weight(a)
        check_weight(b)
        self._add = LIBRARY.load().add_lora
        max_loras, self._rows, self._inputs = a.shape
        self._outputs = b.shape[2]
        self._spans = torch.zeros(max_loras, len(output_ends) + 1, dtype=torch.int32)
        outputs = torch.tensor([0, *output_ends])
        self._memory = (a, b, self._spans, outputs)
        pointers = [tensor.data_ptr() for tensor in self._memory]
        sizes = (self._inputs, self._rows, b.shape[1], len(output_ends))
        self._adapters = _Adapters(*pointers, *sizes)
        self._threads = torch.get_num_threads()

    def set(self, index: int, ends: Sequence[int]) -> None:
        """Set the ends of an adapter's slices in `a`; the first entry is 0."""
        self._spans[index] = torch.tensor(ends, dtype=torch.int32)

    def __call__(
        self,
        out: Tensor,  # [T, out] float32, in place, contiguous
        x: Tensor,  # [T, in] float32
        index: Tensor,  # [T] int64: adapter index, or -1
    ) -> None:
        """Add each token's adapter output to its outputs.

        Raises:
            ValueError: Dtypes or shapes are wrong.
        """
        if x.dtype != torch.float32 or x.shape[-1] != self._inputs:
            raise wrong_rows(x, self._inputs)
        if out.dtype != torch.float32 or out.shape[-1] != self._outputs:
            raise wrong_rows(out, self._outputs)
        if index.dtype != torch.int64 or not len(out) == len(x) == len(index):
            raise ValueError(
                f"{len(out)} outputs, {len(x)} inputs and an index of {index.dtype} with "
                f"{len(index)} elements do not match; the index must be int64"
            )
        if not out.is_contiguous():
            raise ValueError("outputs must be contiguous")
        x, index, num_tokens = x.contiguous(), index.contiguous(), len(x)
        hidden = torch.empty(num_tokens, self._rows, dtype=torch.float32)
        self._add(
            out.data_ptr(), x.data_ptr(), index.data_ptr(), num_tokens, hidden.data_ptr(),
            byref(self._adapters), self._threads,
        )  # fmt: skip
