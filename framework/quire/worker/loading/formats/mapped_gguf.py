"""Tensors of a GGUF file in the memory that it is mapped to."""

from __future__ import annotations

import mmap
import warnings
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from quire.compose.gguf.header import read_header

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class MappedGguf:
    """A GGUF file while it is read. Tensors keep the mapping alive, and must not be written to.

    Args:
        file: Path of the file.
    """

    def __init__(self, file: Path) -> None:
        self._header = read_header(file)
        with file.open("rb") as stream:
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del self._data

    def get_tensor(self, name: str) -> Tensor:
        """Return the numbers of a tensor in its shape, or the bytes of each row of blocks."""
        tensor = self._header.tensors[name]
        dtype = PLAIN.get(tensor.type.name, torch.uint8)
        count = tensor.num_bytes // dtype.itemsize
        with warnings.catch_warnings(action="ignore"):  # torch has no tensors that are only read
            numbers = torch.frombuffer(self._data, dtype=dtype, count=count, offset=tensor.offset)
        return numbers.view(*tensor.shape[:-1], -1)
