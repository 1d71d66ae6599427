"""Typed access to what a GGUF file says of its model; errors name the file and the whole key."""

from __future__ import annotations

import struct
from typing import Any

from quire.compose.gguf.header import GgufTensor, StoredArray
from quire.compose.gguf.split_files import GgufFiles
from quire.errors import CheckpointCorruptError

COPY_AGAIN = "download the file again, or convert the model again with a newer llama.cpp"


class ModelValues:
    """Metadata and tensors of a model.

    Args:
        files: Headers of its files.
        name: Its architecture, which the keys begin with.
    """

    def __init__(self, files: GgufFiles, name: str) -> None:
        self.files = files
        self._name = name

    @property
    def where(self) -> str:
        """The path of the first file, quoted."""
        return repr(str(self.files.first))

    def key(self, key: str) -> str:
        """Return the whole key, with the architecture."""
        return f"{self._name}.{key}"

    def get(self, key: str) -> Any:
        """Return a value, which may have any type; None: there is none."""
        return self.files.metadata.get(self.key(key))

    def count(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 1."""
        found = self._get(key, default)
        if type(found) is not int or found < 1:
            raise self.wrong(key, found, "a whole number from 1")
        return found

    def by_layer(self, key: str) -> list[int] | None:
        """Return the whole numbers from 1 of all layers; None: there is one, or none."""
        found = self.get(key)
        if not isinstance(found, StoredArray):
            return None
        numbers = found.read()
        if len(numbers) < self.count("block_count") or not all(
            type(number) is int and number > 0 for number in numbers
        ):
            raise self.wrong(key, found, "a whole number from 1, or one for each layer")
        return numbers

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 0."""
        found = self._get(key, default)
        if type(found) is not int or found < 0:
            raise self.wrong(key, found, "a whole number from 0")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above 0: the shortest decimal one that is stored so."""
        found = self._get(key, default)
        if type(found) not in (int, float) or not 0 < found < float("inf"):
            raise self.wrong(key, found, "a number above 0")
        return _shortest(float(found))

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a truth value."""
        found = self._get(key, default)
        if not isinstance(found, bool):
            raise self.wrong(key, found, "true or false")
        return found

    def has_tensor(self, name: str) -> bool:
        """Return whether a file has a tensor."""
        return name in self.files.tensors

    def tensor(self, name: str) -> GgufTensor:
        """Return a tensor.

        Raises:
            CheckpointCorruptError: There is none of that name.
        """
        if name not in self.files.tensors:
            raise CheckpointCorruptError(f"{self.where} lacks the tensor {name}; {COPY_AGAIN}")
        return self.files.tensors[name]

    def floats(self, tensor: GgufTensor) -> list[float]:
        """Return the numbers of a tensor of type F32."""
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.offset)
            return list(struct.unpack(f"<{tensor.num_bytes // 4}f", stream.read(tensor.num_bytes)))

    def wrong(self, key: str, found: Any, what: str) -> CheckpointCorruptError:
        """Return the error of a value that is missing, or is none that it may be."""
        if found is None:
            return CheckpointCorruptError(
                f"{self.where} lacks {self.key(key)} in its metadata; {COPY_AGAIN}"
            )
        shown = "an array" if isinstance(found, StoredArray) else repr(found)
        return CheckpointCorruptError(
            f"{self.key(key)} in {self.where} must be {what}, got {shown:.80}"
        )

    def _get(self, key: str, default: Any) -> Any:
        found = self.get(key)
        return default if found is None else found


def _shortest(number: float) -> float:
    """Return the decimal number that a float32 was made of, such as 1e-06."""
    short = float(f"{number:.7g}")
    try:
        return short if struct.pack("<f", short) == struct.pack("<f", number) else number
    except OverflowError:
        return number
