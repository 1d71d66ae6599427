"""Libraries for each instruction set of this machine, and one whose compiler finds an error."""

import platform
from pathlib import Path

from quire.machine.instruction_sets import (
    INSTRUCTION_SETS,
    VARIABLE,
    bf16_unavailable_reason,
    cpu_flags,
)
from quire.native.library import NativeLibrary

SETS_HERE = [
    known.name
    for known in INSTRUCTION_SETS
    if platform.machine() in known.architectures and known.needs <= cpu_flags()
]


BF16_SETS_HERE = [
    known.name
    for known in INSTRUCTION_SETS
    if known.name in SETS_HERE and bf16_unavailable_reason(known, cpu_flags()) is None
]


def use_set(monkeypatch, module, name: str, attribute: str = "LIBRARY") -> None:
    """Let a module that has a library use one instruction set."""
    monkeypatch.setenv(VARIABLE, name)
    library = again(getattr(module, attribute))
    library.load()
    monkeypatch.setattr(module, attribute, library)


def again(library: NativeLibrary) -> NativeLibrary:
    """Return a library of the same source that is not loaded yet."""
    return NativeLibrary(library.name, library.source, library.functions, repeats=library.repeats)


def failing_library(folder: Path) -> NativeLibrary:
    """Return one whose source is no C++."""
    source = folder / "broken.cpp"
    source.write_text("this is no C++\n")
    return NativeLibrary("broken", source, {})
