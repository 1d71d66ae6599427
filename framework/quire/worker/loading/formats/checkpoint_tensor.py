"""Tensors of a checkpoint as a model gets them: stored ones, or computed from several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from quire.worker.loading.checkpoint_files import StoredTensor


@dataclass(frozen=True, slots=True)
class CheckpointTensor:
    """A tensor of the checkpoint.

    Attributes:
        name: Name by which the model knows it.
        shape: Shape of the result.
        stored: Tensors of the files that it is computed from; errors name the first one.
        compute: Function of these tensors, in order; None: it is the only one, unchanged.
    """

    name: str
    shape: tuple[int, ...]
    stored: tuple[StoredTensor, ...]
    compute: Callable[..., Tensor] | None = None

    @property
    def num_bytes(self) -> int:
        """Number of bytes to read."""
        return sum(tensor.num_bytes for tensor in self.stored)

    def value(self, *stored: Tensor) -> Tensor:
        """Return the tensor, given the stored ones."""
        return stored[0] if self.compute is None else self.compute(*stored)


Tensors = Mapping[str, CheckpointTensor]


def unchanged(stored: Mapping[str, StoredTensor]) -> dict[str, CheckpointTensor]:
    """Return the tensors of files under their own names."""
    return {name: CheckpointTensor(name, item.shape, (item,)) for name, item in stored.items()}
