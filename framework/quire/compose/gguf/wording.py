"""GGUF files in words, for people: what a file contains, and errors about its config."""

from __future__ import annotations

import re
from collections import Counter

from quire.compose.gguf.model_config import key_names
from quire.compose.gguf.split_files import GgufFiles


def contents(files: GgufFiles) -> str:
    """Return the architecture, and the share of each type of tensors in the bytes."""
    sizes = Counter[str]()
    for tensor in files.tensors.values():
        sizes[tensor.type.name] += tensor.num_bytes
    total = sizes.total()
    shares = ", ".join(f"{name} {size / total:.1%}" for name, size in sizes.most_common())
    several = f" in {len(files.headers)} files" if len(files.headers) > 1 else ""
    name = files.metadata["general.architecture"]
    return f"architecture {name}, {total / 1e9:.3g} GB{several}: {shares}"


def with_metadata_keys(text: str, files: GgufFiles) -> str:
    """Return an error about a config, with the keys of the file that it speaks of."""
    words, names = set(re.findall(r"\w+", text)), key_names(files)
    found = [f"{ours} is {theirs}" for ours, theirs in names.items() if ours in words]
    where = f"In {str(files.first)!r}, which has no config.json,"
    return f"{text}. {where} {', '.join(found)}" if found else text
