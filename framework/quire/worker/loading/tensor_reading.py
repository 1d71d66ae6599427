"""Reading of a checkpoint's tensors from memory-mapped files, one file after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.compose.gguf.header import is_gguf
from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, StoredTensor, Value
from quire.interfaces.quantized_weight import QuantizedStack, QuantizedWeight
from quire.worker.loading.formats.mapped_gguf import MappedGguf
from quire.worker.loading.weight_plan import PlannedTensor


def read_tensors(plan: Sequence[PlannedTensor]) -> Iterator[tuple[PlannedTensor, Value]]:
    """Yield each planned tensor with its value, file by file.

    Raises:
        CheckpointCorruptError: A file cannot be read.
    """
    for _, items in groupby(sorted(plan, key=_first_file), _first_file):
        with ExitStack() as stack:
            files = _OpenFiles(stack)
            for item in items:
                yield item, files.value(item.tensor)


def read_stored(stored: StoredTensor) -> Tensor:
    """Return one tensor of a file.

    Raises:
        CheckpointCorruptError: The file cannot be read.
    """
    with ExitStack() as stack:
        return _OpenFiles(stack).read(stored)


def check_copies(copies: Iterable[tuple[CheckpointTensor, CheckpointTensor]]) -> None:
    """Check that tensors which a tied model has once are equal wherever the checkpoint has two.

    Args:
        copies: Pairs of a tensor that is left out, and the one that is used in its place.

    Raises:
        CheckpointCorruptError: They differ.
    """
    for copy, original in copies:
        with ExitStack() as stack:
            files = _OpenFiles(stack)
            if not _are_equal(_dense(files.value(copy)), _dense(files.value(original))):
                raise CheckpointCorruptError(
                    f"config.json ties {copy.name} to {original.name} (tie_word_embeddings), but "
                    "the checkpoint has both and they differ; set tie_word_embeddings to false to "
                    f"use {copy.name}, or remove that tensor to use the tied one"
                )


def _first_file(item: PlannedTensor) -> Path:
    return item.tensor.stored[0].file


def _dense(value: Value) -> Tensor:
    if isinstance(value, QuantizedStack):
        return torch.stack([weight.dequantized() for weight in value])
    return value.dequantized() if isinstance(value, QuantizedWeight) else value


def _are_equal(copy: Tensor, original: Tensor) -> bool:
    return torch.equal(copy.to(original.dtype), original)


def _open(file: Path) -> AbstractContextManager[Any]:
    if is_gguf(file):
        return MappedGguf(file)
    opened: AbstractContextManager[Any] = safe_open(file, framework="pt", device="cpu")
    return opened


class _OpenFiles:
    """Files that stay open until the stack is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._files: dict[Path, Any] = {}

    def value(self, tensor: CheckpointTensor) -> Value:
        """Return the value of a tensor."""
        return tensor.value(*map(self.read, tensor.stored))

    def read(self, stored: StoredTensor) -> Tensor:
        """Return a tensor of a file, or its entry that is meant."""
        try:
            if stored.file not in self._files:
                opened = _open(stored.file)
                self._files[stored.file] = self._stack.enter_context(opened)
            tensor: Tensor = self._files[stored.file].get_tensor(stored.name)
        except SafetensorError as error:
            raise CheckpointCorruptError(f"{str(stored.file)!r} cannot be read: {error}") from error
        return tensor if stored.index is None else tensor[stored.index]
