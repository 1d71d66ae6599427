"""Headers of GGUF files: metadata and the positions of tensors, without their data.

A file is `GGUF`, its version, the numbers of tensors and of metadata entries, the entries, the
descriptions of the tensors, and from the next multiple of `general.alignment` on the data. All
numbers are little-endian. No count or length of the file is trusted: each is compared with the
bytes that are left before anything of that size exists.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from quire.compose.gguf.cursor import Cursor, damaged, mapped_header
from quire.compose.gguf.tensor_types import TYPES, UNSUPPORTED, TensorType
from quire.errors import UnsupportedModelError

MAGIC = b"GGUF"
LFS_POINTER = b"version https://git-lfs"
VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 2**20
MAX_DIMS = 4
MAX_ENTRIES = 2**16
MAX_TENSORS = 2**20
MAX_ELEMENTS = 2**24  # of all arrays of metadata
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
           12: "d"}  # fmt: skip
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        shape: Sizes as in the layout of Hugging Face: the row's is the last.
        offset: Position of its first byte in the file.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    type: TensorType
    offset: int

    @property
    def num_bytes(self) -> int:
        """Number of bytes in the file."""
        return prod(self.shape) // self.type.block_size * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array of metadata, whose elements are read when they are needed."""

    file: Path
    key: str
    kind: int
    count: int
    offset: int

    def read(self) -> list[Any]:
        """Return the elements."""
        with mapped_header(self.file) as data:
            cursor = Cursor(self.file, data, self.offset)
            if self.kind == STRING:
                what = f"an element of {self.key}"
                return [cursor.string(what) for _ in range(self.count)]
            return cursor.numbers(NUMBERS[self.kind], self.count, self.key)


@dataclass(frozen=True, slots=True, eq=False)
class GgufHeader:
    """What a file says before its data.

    Attributes:
        metadata: Values by key: numbers, texts, truths and arrays.
        tensors: Tensors by name.
        num_bytes: Bytes of the header.
    """

    file: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    num_bytes: int


def is_gguf(file: Path) -> bool:
    """Return whether a file begins as GGUF files do."""
    with file.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def read_header(file: Path) -> GgufHeader:
    """Read the header of a file; that of an unchanged file is read once.

    Raises:
        CheckpointCorruptError: The file is truncated or damaged.
        UnsupportedModelError: Its version, byte order or a tensor's type is not supported.
    """
    status = file.stat()
    return _read_header(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _read_header(file: Path, size: int, changed_ns: int) -> GgufHeader:
    del changed_ns
    if size < len(MAGIC) + 4:
        raise damaged(file, f"it has {size} bytes")
    with mapped_header(file) as data:
        _check_start(file, data)
        cursor = Cursor(file, data, 8)
        num_tensors = cursor.count("tensors", MAX_TENSORS)
        num_entries = cursor.count("metadata entries", MAX_ENTRIES)
        metadata = _read_metadata(cursor, num_entries)
        alignment = _alignment(file, metadata)
        described = [_read_tensor(cursor) for _ in range(num_tensors)]
    start = -(-cursor.position // alignment) * alignment
    tensors = list(_placed(file, described, start, size, alignment))
    _check_overlaps(file, tensors)
    by_name = {tensor.name: tensor for tensor in tensors}
    if len(by_name) < len(tensors):
        (twice, _), *_ = Counter(tensor.name for tensor in tensors).most_common(1)
        raise damaged(file, f"it has several tensors {twice}")
    return GgufHeader(file, metadata, by_name, cursor.position)


def _check_start(file: Path, data: mmap.mmap) -> None:
    """Check that the file is GGUF of a supported version and byte order."""
    if data[: len(LFS_POINTER)] == LFS_POINTER:
        raise damaged(file, "it is a Git LFS pointer to the weights; run `git lfs pull`")
    if data[:4] != MAGIC:
        raise damaged(file, f"it begins with {data[:4]!r}, and a GGUF file with {MAGIC!r}")
    (version,) = struct.unpack("<I", data[4:8])
    if version in VERSIONS:
        return
    if struct.unpack(">I", data[4:8])[0] in (1, *VERSIONS):
        raise UnsupportedModelError(
            f"{str(file)!r} is a big-endian GGUF file; quire reads little-endian ones. Convert it "
            "with gguf-convert-endian of the package gguf"
        )
    raise UnsupportedModelError(
        f"{str(file)!r} is a GGUF file of version {version}; quire reads versions "
        f"{' and '.join(map(str, VERSIONS))}. Convert the model again with a newer llama.cpp"
    )


def _read_metadata(cursor: Cursor, num_entries: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    num_elements = 0
    for number in range(num_entries):
        key = cursor.name(f"the key of metadata entry {number}")
        if key in metadata:
            raise damaged(cursor.file, f"its metadata has {key} twice")
        value = _read_value(cursor, key, MAX_ELEMENTS - num_elements)
        num_elements += value.count if isinstance(value, StoredArray) else 0
        metadata[key] = value
    return metadata


def _read_value(cursor: Cursor, key: str, most: int) -> Any:
    kind = cursor.number("I", f"the type of {key}")
    if kind == STRING:
        return cursor.string(key)
    if kind in NUMBERS:
        return cursor.number(NUMBERS[kind], key)
    if kind != ARRAY:
        raise damaged(cursor.file, f"{key} has the type {kind}, which GGUF does not have")
    inner = cursor.number("I", f"the type of the elements of {key}")
    if inner not in (STRING, *NUMBERS):
        raise damaged(
            cursor.file, f"the elements of {key} have the type {inner}, which none may have"
        )
    count = cursor.count(f"elements of {key}", most)
    array = StoredArray(cursor.file, key, inner, count, cursor.position)
    if inner == STRING:
        cursor.skip_strings(count, f"an element of {key}")
    else:
        cursor.skip(count * struct.calcsize(f"<{NUMBERS[inner]}"), key)
    return array


def _alignment(file: Path, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
    is_power = type(alignment) is int and 8 <= alignment <= MAX_ALIGNMENT
    if not is_power or alignment & (alignment - 1):
        raise damaged(
            file, f"{ALIGNMENT} must be a power of two from 8 to {MAX_ALIGNMENT}, got {alignment!r}"
        )
    return int(alignment)


def _read_tensor(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return the name, the shape, the type's number and the offset of one tensor."""
    name = cursor.name("the name of a tensor")
    num_dims = cursor.number("I", f"the number of dimensions of {name}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise damaged(
            cursor.file, f"tensor {name} has {num_dims} dimensions; 1 to {MAX_DIMS} may be"
        )
    sizes = cursor.numbers("Q", num_dims, f"the shape of {name}")
    kind = cursor.number("I", f"the type of {name}")
    return name, tuple(reversed(sizes)), kind, cursor.number("Q", f"the offset of {name}")


def _placed(
    file: Path,
    described: Iterable[tuple[str, tuple[int, ...], int, int]],
    start: int,
    size: int,
    alignment: int,
) -> Iterator[GgufTensor]:
    """Yield the tensors, each of which lies in the file.

    Args:
        file: Path of the file.
        described: Descriptions of the tensors.
        start: Position of the data.
        size: Size of the file.
        alignment: Number that offsets are multiples of.
    """
    for name, shape, kind, offset in described:
        if kind not in TYPES:
            raise _unsupported_type(file, name, kind)
        tensor = GgufTensor(name, file, shape, TYPES[kind], start + offset)
        block = tensor.type.block_size
        if not all(shape):
            raise damaged(file, f"tensor {name} has shape {list(shape)}, which has no elements")
        if shape[-1] % block:
            raise damaged(
                file,
                f"tensor {name} of type {tensor.type.name} has rows of {shape[-1]} elements, which "
                f"are no multiple of {block}",
            )
        if offset % alignment:
            raise damaged(file, f"tensor {name} has the offset {offset}, which is not aligned")
        if tensor.offset + tensor.num_bytes > size:
            raise damaged(
                file,
                f"tensor {name} of shape {list(shape)} and type {tensor.type.name} ends at "
                f"{tensor.offset + tensor.num_bytes}, but the file has {size} bytes; is the copy "
                "complete?",
            )
        yield tensor


def _unsupported_type(file: Path, name: str, kind: int) -> UnsupportedModelError:
    known = ", ".join(each.name for each in TYPES.values())
    return UnsupportedModelError(
        f"tensor {name} in {str(file)!r} has the type {UNSUPPORTED.get(kind, kind)}, which quire "
        f"does not read; it reads {known}. Use another quantization of the model, such as Q4_K_M"
    )


def _check_overlaps(file: Path, tensors: Iterable[GgufTensor]) -> None:
    for before, after in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if before.offset + before.num_bytes > after.offset:
            raise damaged(file, f"tensors {before.name} and {after.name} overlap")
