"""Checkpoint files: lookup of the safetensors files, and checks of their headers.

An index decides which files belong to the checkpoint; files beside them are ignored. Without one
they are `model.safetensors`, a complete set of numbered files, or Mistral's `consolidated` files.

Headers are checked before any weight is read. Beside safetensors only GGUF files are supported
(`compose/gguf`): a pickle is refused by its file name and never opened. A header gives the byte
range of each tensor. All ranges are compared with the file's size first, so a damaged file is an
error with its name, not an allocation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from quire.compose.gguf.header import is_gguf
from quire.compose.gguf.header import read_header as read_gguf_header
from quire.compose.gguf.split_files import gguf_paths
from quire.errors import CheckpointCorruptError, CheckpointNotFoundError, UnsafeCheckpointError
from quire.interfaces.checkpoint_tensors import StoredTensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONSOLIDATED = "consolidated.safetensors"  # Mistral's own layout
NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
LFS_POINTER = b"version https://git-lfs"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_OFFSET = 2**63 - 1
MAX_DIMS = 64  # torch's limit
MAX_LISTED = 8
ELEMENT_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "U16": 2, "U32": 4, "U64": 8, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


def find_weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a checkpoint, all of which exist.

    Args:
        folder: Folder with safetensors files, or the first GGUF file of a model.

    Raises:
        CheckpointNotFoundError: The folder does not exist, or has no weights.
        UnsafeCheckpointError: The folder has its weights only as pickles.
        CheckpointCorruptError: The index is damaged, or files are missing.
    """
    if folder.is_file():
        return gguf_paths(folder)
    if not folder.is_dir():
        raise CheckpointNotFoundError(f"no such model folder: {str(folder)!r}")
    for stem in (SINGLE, CONSOLIDATED):
        if (folder / f"{stem}.index.json").is_file():
            return _shards(folder, f"{stem}.index.json")
        if (folder / stem).is_file():
            return [folder / stem]
        if numbered := _numbered_files(folder, stem.removesuffix(".safetensors")):
            return numbered
    links = (file for file in folder.iterdir() if file.is_symlink())
    if broken := sorted(link.name for link in links if not link.exists()):
        raise CheckpointCorruptError(
            f"{str(folder)!r} has links to files that are gone: {listed(broken)}; download them "
            "again"
        )
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise UnsafeCheckpointError(
            f"{str(folder)!r} has its weights only as {', '.join(pickles)}: such files can run "
            "code when loaded, so quire does not open them; convert them to safetensors"
        )
    raise CheckpointNotFoundError(
        f"{str(folder)!r} has no {SINGLE}, no {INDEX} and no {CONSOLIDATED}; is the copy complete?"
    )


def read_headers(files: list[Path]) -> dict[str, StoredTensor]:
    """Return all tensors of the files by name, without reading their data.

    Raises:
        CheckpointCorruptError: A file is truncated or damaged, or two files have a tensor of the
            same name.
    """
    found: dict[str, StoredTensor] = {}
    damaged: list[CheckpointCorruptError] = []
    for file in files:
        try:
            tensors = read_header(file)
        except CheckpointCorruptError as error:
            damaged.append(error)
            continue
        for tensor in tensors:
            if tensor.name in found:
                other = found[tensor.name].file.name
                raise CheckpointCorruptError(
                    f"tensor {tensor.name} is both in {other} and in {file.name}"
                )
            found[tensor.name] = tensor
    _check_damaged(damaged, len(files))
    return found


def read_header(file: Path) -> list[StoredTensor]:
    """Return the tensors of one file, in the order of their data.

    Raises:
        CheckpointCorruptError: The file is truncated or damaged.
    """
    if is_gguf(file):
        tensors = read_gguf_header(file).tensors.values()
        return [StoredTensor(t.name, file, t.shape, t.type.name, t.num_bytes) for t in tensors]
    header, data_bytes = _read_json(file)
    spans = sorted(
        (_span(file, name, entry) for name, entry in header.items() if name != "__metadata__"),
        key=lambda span: span[:2],
    )
    _check_spans(file, [span[:2] for span in spans], data_bytes)
    return [tensor for _, _, tensor in spans]


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and the number of the others."""
    more = len(names) - MAX_LISTED
    return ", ".join(names[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _shards(folder: Path, index_name: str) -> list[Path]:
    """Return the files that an index names."""
    index = folder / index_name
    try:
        content = json.loads(index.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointCorruptError(f"{str(index)!r} is not a weight index: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict):
        raise CheckpointCorruptError(
            f"{str(index)!r} is not a weight index: it must be an object with an object weight_map "
            "from the name of each tensor to that of its file"
        )
    if not all(isinstance(name, str) and name for name in weight_map.values()):
        raise CheckpointCorruptError(
            f"{str(index)!r} is not a weight index: its weight_map must have the name of a file "
            "for each tensor"
        )
    names = sorted(set(weight_map.values()))
    if not all(Path(name).name == name for name in names):
        raise CheckpointCorruptError(f"{str(index)!r} names files outside its folder")
    unsafe = [name for name in names if not name.endswith(".safetensors")]
    if unsafe:
        raise UnsafeCheckpointError(
            f"{str(index)!r} names {', '.join(unsafe)}; only .safetensors files are supported"
        )
    return _present(folder, names)


def _numbered_files(folder: Path, stem: str) -> list[Path]:
    """Return the files of a set that has no index, such as `model-00001-of-00003.safetensors`."""
    found = [NUMBERED.fullmatch(file.name) for file in folder.iterdir()]
    counts = {match["count"] for match in found if match is not None and match["stem"] == stem}
    if not counts:
        return []
    if len(counts) > 1:
        raise CheckpointCorruptError(
            f"{str(folder)!r} has files of several sets, of {' and of '.join(sorted(counts))}, and "
            f"no {stem}.safetensors.index.json that says which to load"
        )
    count = counts.pop()
    numbers = range(1, int(count) + 1)
    return _present(folder, [f"{stem}-{i:05d}-of-{count}.safetensors" for i in numbers])


def _present(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the paths of files, all of which must exist."""
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointCorruptError(
            f"{str(folder)!r} lacks {len(missing)} of {len(names)} weight files: "
            f"{listed(missing)}; copy it completely"
        )
    return [folder / name for name in names]


def _check_damaged(damaged: Sequence[CheckpointCorruptError], num_files: int) -> None:
    """Raise the error of a damaged file, or one that names all of several."""
    if len(damaged) == 1:
        raise damaged[0]
    if damaged:
        reasons = "; ".join(map(str, damaged))
        raise CheckpointCorruptError(
            f"{len(damaged)} of {num_files} weight files are damaged: {reasons}"
        )


def _read_json(file: Path) -> tuple[Mapping[str, Any], int]:
    """Return the header, and the number of bytes of data that follow it."""
    size = file.stat().st_size
    if not size:
        raise _corrupt(file, "it is empty")
    with file.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise _corrupt(file, "it is a Git LFS pointer to the weights; run `git lfs pull`")
        stream.seek(0)
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise _corrupt(file, f"its header claims {length} bytes, but the file has {size}")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise _corrupt(file, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _corrupt(file, "its header is not a JSON object")
    return header, size - 8 - length


def _span(file: Path, name: str, entry: Any) -> tuple[int, int, StoredTensor]:
    """Return the byte range of one tensor, and its description."""
    try:
        begin, end = map(_whole, entry["data_offsets"])
        shape = _shape(entry["shape"])
        dtype = str(entry["dtype"])
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(
            file, f"its header has an invalid entry for tensor {name} ({error!r})"
        ) from error
    if dtype not in ELEMENT_BYTES:
        raise _corrupt(file, f"tensor {name} has the dtype {dtype}, which is unknown")
    expected = prod(shape) * ELEMENT_BYTES[dtype]
    if end - begin != expected:
        raise _corrupt(
            file,
            f"tensor {name} of shape {list(shape)} and dtype {dtype} takes {expected} bytes, but "
            f"its byte range is {begin} to {end}",
        )
    return begin, end, StoredTensor(name, file, shape, dtype, end - begin)


def _shape(value: Sequence[object]) -> tuple[int, ...]:
    if len(value) > MAX_DIMS:
        raise ValueError(f"a shape of {len(value)} dimensions")
    return tuple(map(_whole, value))


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_OFFSET:
        raise ValueError(f"{value!r} is not a whole number from 0 to {MAX_OFFSET}")
    return value


def _check_spans(file: Path, spans: list[tuple[int, int]], data_bytes: int) -> None:
    """Check that the byte ranges of the tensors are contiguous and fill the file."""
    edges = [(0, 0), *spans]
    if any(before[1] != after[0] for before, after in pairwise(edges)):
        raise _corrupt(file, "its tensors overlap or leave gaps")
    if edges[-1][1] != data_bytes:
        raise _corrupt(
            file,
            f"its tensors take {edges[-1][1]} bytes, but the file has {data_bytes} bytes of data; "
            "is the copy complete?",
        )


def _corrupt(file: Path, why: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(f"{str(file)!r} is damaged: {why}")
