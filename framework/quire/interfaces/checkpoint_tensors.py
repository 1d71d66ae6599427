"""Tensors of a checkpoint: stored ones, and those that are computed from several stored ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from quire.interfaces.quantized_weight import QuantizedStack, QuantizedWeight

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, as described by the file's header, or one entry of it.

    Attributes:
        name: Name of the tensor in the file.
        file: Path of the file.
        shape: Shape of the tensor, or of the entry.
        dtype: Dtype, as the format names it: "BF16", in GGUF files also "Q4_K".
        num_bytes: Bytes of it in the file.
        index: Index of the entry in the tensor's first dimension; None: the whole tensor is meant.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    index: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """A tensor of the checkpoint.

    Attributes:
        name: Name by which the model knows it.
        shape: Shape of the result.
        stored: Tensors of the files that it is computed from; errors name the first one.
        compute: Function of these tensors, in order; None: it is the only one, unchanged.
        is_quantized: Whether the result is a `QuantizedWeight` `[N, K]` or a `QuantizedStack`
            `[E, N, K]`. Its rows are outputs, even if an unquantized checkpoint of the model has
            the matrix transposed.
        is_optional: Whether it is left out if the model has no such tensor.
    """

    name: str
    shape: tuple[int, ...]
    stored: tuple[StoredTensor, ...]
    compute: Callable[..., Value] | None = None
    is_quantized: bool = False
    is_optional: bool = False

    @property
    def num_bytes(self) -> int:
        """Number of bytes to read."""
        return sum(tensor.num_bytes for tensor in self.stored)

    def value(self, *stored: Tensor) -> Value:
        """Return the tensor, given the stored ones."""
        return stored[0] if self.compute is None else self.compute(*stored)


Value = Union["Tensor", QuantizedWeight, QuantizedStack]
Tensors = Mapping[str, CheckpointTensor]
Read = Callable[[StoredTensor], "Tensor"]


def unchanged(stored: Mapping[str, StoredTensor]) -> dict[str, CheckpointTensor]:
    """Return the tensors of files under their own names."""
    return {name: CheckpointTensor(name, item.shape, (item,)) for name, item in stored.items()}
