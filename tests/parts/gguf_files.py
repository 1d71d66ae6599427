"""GGUF files of tests, written from the published layout, and a checkpoint's tensors as such files.

Tensors are given as in the layout of Hugging Face, and stored as F32 unless there are blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from quire.compose.gguf.tensor_types import TYPES

CODES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}
STRING, ARRAY = 8, 9
F32 = 0
NUMBERS = {kind.name: number for number, kind in TYPES.items()}  # of GGML's types


@dataclass(frozen=True, slots=True)
class Number:
    """A number of metadata in a type of its own, by the code of `struct`."""

    value: Any
    code: str


@dataclass(frozen=True, slots=True)
class Blocks:
    """Bytes of a tensor, `[rows, bytes a row]`, by the number of GGML's type."""

    data: np.ndarray
    kind: int
    shape: tuple[int, ...]


def string(text: str | bytes) -> bytes:
    """Return a text with its length."""
    content = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(content)) + content


def value(given: Any) -> bytes:
    """Return a value of metadata with its type."""
    if isinstance(given, Number):
        return struct.pack(f"<I{given.code}", CODES[given.code], given.value)
    if isinstance(given, bool):
        return struct.pack("<I?", CODES["?"], given)
    if isinstance(given, int):
        return struct.pack("<II", CODES["I"], given)
    if isinstance(given, float):
        return struct.pack("<If", CODES["f"], given)
    if isinstance(given, str | bytes):
        return struct.pack("<I", STRING) + string(given)
    return struct.pack("<I", ARRAY) + array(given)


def array(given: Sequence[Any]) -> bytes:
    """Return the type of the elements, their number, and the elements."""
    if not given or isinstance(given[0], str):
        return struct.pack("<IQ", STRING, len(given)) + b"".join(map(string, given))
    code = {float: "f", bool: "?"}.get(type(given[0]), "i")
    return struct.pack(f"<IQ{len(given)}{code}", CODES[code], len(given), *given)


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any] = MappingProxyType({}),
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """Return a whole file. A tensor is an array of numbers, which becomes F32, or `Blocks`."""
    start = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    entries = b"".join(string(key) + value(given) for key, given in metadata.items())
    described, data = b"", b""
    for name, given in tensors.items():
        blocks = given if isinstance(given, Blocks) else _plain(np.asarray(given))
        sizes = tuple(reversed(blocks.shape))
        described += string(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        described += struct.pack("<IQ", blocks.kind, len(data))
        data += padded(blocks.data.tobytes(), alignment)
    return padded(start + entries + described, alignment) + data


def write_gguf(file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> Path:
    """Write a file, and return its path."""
    file.write_bytes(gguf_bytes(metadata, tensors))
    return file


def padded(content: bytes, alignment: int) -> bytes:
    """Return bytes up to the next multiple of the alignment."""
    return content + bytes(-len(content) % alignment)


def _plain(numbers: np.ndarray) -> Blocks:
    return Blocks(np.ascontiguousarray(numbers, np.float32), F32, numbers.shape)
