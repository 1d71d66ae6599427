"""A model in GGUF: one file, or a set of numbered ones such as `model-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.compose.gguf.header import GgufHeader, GgufTensor, read_header
from quire.errors import CheckpointCorruptError

NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
COUNT, NUM_TENSORS = "split.count", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """The headers of a model's files; the first has the metadata.

    Attributes:
        headers: Headers, in the order of the files.
        tensors: All tensors by name.
    """

    headers: tuple[GgufHeader, ...]
    tensors: Mapping[str, GgufTensor]

    @property
    def first(self) -> Path:
        """Path of the first file."""
        return self.headers[0].file

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the model."""
        return self.headers[0].metadata


def read_files(first: Path) -> GgufFiles:
    """Read the headers of a model's files.

    Args:
        first: Path of its file, or of the first one of a set.

    Raises:
        CheckpointCorruptError: A file is missing or damaged, or is not the first one.
        UnsupportedModelError: A file has a version, byte order or type that is not supported.
    """
    headers = tuple(map(read_header, gguf_paths(first)))
    tensors: dict[str, GgufTensor] = {}
    for header in headers:
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise CheckpointCorruptError(
                    f"tensor {name} is both in {tensors[name].file.name} and in {header.file.name}"
                )
            tensors[name] = tensor
    expected = headers[0].metadata.get(NUM_TENSORS, len(tensors))
    if expected != len(tensors):
        raise CheckpointCorruptError(
            f"{str(first)!r} claims {expected!r:.40} tensors in all its files ({NUM_TENSORS}), "
            f"which have {len(tensors)}"
        )
    return GgufFiles(headers, tensors)


def gguf_paths(first: Path) -> list[Path]:
    """Return the paths of a model's files.

    Raises:
        CheckpointCorruptError: One is missing, or the given one is not the first.
    """
    count = read_header(first).metadata.get(COUNT, 1)
    if count in (0, 1):
        return [first]
    names = set_names(first.name)
    if len(names) != count:
        raise CheckpointCorruptError(
            f"{str(first)!r} is one of {count!r:.40} files of a model ({COUNT}), whose names must "
            "be like model-00001-of-00003.gguf; give them the names that they had"
        )
    paths = [first.with_name(name) for name in names]
    if first != paths[0]:
        raise CheckpointCorruptError(
            f"{str(first)!r} is not the first file of its model; give {str(paths[0])!r}"
        )
    if missing := [path.name for path in paths if not path.is_file()]:
        raise CheckpointCorruptError(
            f"{str(first)!r} is the first of {count} files, and of the others {len(missing)} are "
            f"missing: {', '.join(missing[:8])}; copy them to the same folder"
        )
    return paths


def set_names(name: str) -> list[str]:
    """Return the names of all files of a set, given one of them; without a number it is alone."""
    match = NUMBERED.fullmatch(name)
    if match is None:
        return [name]
    numbers = range(1, int(match["count"]) + 1)
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in numbers]
