"""Products of packed weights by AMX on other processors: the same source, emulated instructions."""

import shutil
from pathlib import Path

from native_libraries import SETS_HERE

from quire.machine.instruction_sets import INSTRUCTION_SETS, VARIABLE
from quire.native.library import NativeLibrary
from quire_quantizations import linear_library as library

AMX = next(known for known in INSTRUCTION_SETS if known.name == library.MATRIX_SET)
BASE = "avx512"  # instruction set of everything else
HAS_BASE = BASE in SETS_HERE
EMULATOR = Path(__file__).with_name("amx_emulator.h")


def emulated_library(folder: Path) -> NativeLibrary:
    """Return a library of the kernels' source behind the emulator, written to an empty folder."""
    for header in (EMULATOR, *library.SOURCE.parent.glob("*.h")):
        shutil.copy(header, folder)
    source = folder / library.SOURCE.name
    source.write_text(f'#include "{EMULATOR.name}"\n{library.SOURCE.read_text()}')
    return NativeLibrary("emulated AMX", source, library.FUNCTIONS, repeats=True)


def use_emulated(monkeypatch, emulated: NativeLibrary) -> None:
    """Let packed weights be multiplied by the emulated instructions."""
    monkeypatch.setenv(VARIABLE, BASE)
    emulated.load()
    monkeypatch.setattr(library, "LIBRARY", emulated)
    monkeypatch.setattr(library, "here", lambda: AMX)
