"""Libraries for each instruction set of this machine, and one whose compiler finds an error."""

import platform
from pathlib import Path
from types import SimpleNamespace

import pytest
from arm_emulator import MISSING, ArmLibrary

from quire.machine import instruction_sets
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

ARM = "neon in an emulator"
SETS_AND_ARM = [
    *SETS_HERE,
    pytest.param(
        ARM,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
            pytest.mark.timeout(1200),
        ],
    ),
]
CPU_INFO = instruction_sets.CPU_INFO
EMULATED: dict[tuple[Path, tuple[str, ...]], ArmLibrary] = {}  # compiled once per process
ARM_FEATURES = "Features : fp asimd asimddp\n"

BF16_SETS_HERE = [
    known.name
    for known in INSTRUCTION_SETS
    if known.name in SETS_HERE and bf16_unavailable_reason(known, cpu_flags()) is None
]


def use_set(monkeypatch, module, name: str, attribute: str = "LIBRARY") -> None:
    """Let a module that has a library use one instruction set of this machine, or `ARM`."""
    found = original(getattr(module, attribute))
    if name == ARM:
        library = EMULATED.setdefault((found.source, found.macros), ArmLibrary(found))
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        library = again(found)
        monkeypatch.setenv(VARIABLE, name)
    see_processor(monkeypatch, is_arm=name == ARM)
    library.load()
    monkeypatch.setattr(module, attribute, library)


def see_processor(monkeypatch, *, is_arm: bool) -> None:
    """Let the choice of the instruction set see this processor, or one of Arm."""
    system = SimpleNamespace(machine=lambda: "aarch64", system=lambda: "Linux")
    info = SimpleNamespace(is_file=lambda: True, read_text=lambda: ARM_FEATURES)
    monkeypatch.setattr(instruction_sets, "platform", system if is_arm else platform)
    monkeypatch.setattr(instruction_sets, "CPU_INFO", info if is_arm else CPU_INFO)


def original(library: NativeLibrary | ArmLibrary) -> NativeLibrary:
    """Return the library that an emulated one stands in for."""
    return library.library if isinstance(library, ArmLibrary) else library


def again(library: NativeLibrary | ArmLibrary) -> NativeLibrary:
    """Return a library of the same source that is not loaded yet."""
    library = original(library)
    return NativeLibrary(
        library.name,
        library.source,
        library.functions,
        repeats=library.repeats,
        macros=library.macros,
    )


def failing_library(folder: Path) -> NativeLibrary:
    """Return one whose source is no C++."""
    source = folder / "broken.cpp"
    source.write_text("this is no C++\n")
    return NativeLibrary("broken", source, {})
