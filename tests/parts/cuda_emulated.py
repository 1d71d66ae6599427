"""The decode kernels of the cuda backend on a CPU: the same source, with threads as fibers."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from quire.interfaces.attention import AttentionShape
from quire_attention_backends.cuda import cuda_decode
from quire_attention_backends.cuda.cuda_attention import CudaBackend
from quire_attention_backends.cuda.cuda_decode import BLOCK_THREADS, DecodeStep, DecodeVariant

HAS_COMPILER = shutil.which("g++") is not None
EMULATOR = Path(__file__).parent / "cuda_emulator.h"
SOURCE = Path(cuda_decode.__file__).parent / cuda_decode.SOURCE
UNIT = f"""
#include "{EMULATOR}"
#include "{SOURCE}"

extern "C" int run_paged_decode(const DecodeStep *step, int x, int y) {{
    return emulator::run_grid(x, y, BLOCK_THREADS, [=] {{ paged_decode(*step); }});
}}

extern "C" int run_combine(const DecodeStep *step, int x, int y) {{
    return emulator::run_grid(x, y, BLOCK_THREADS, [=] {{ combine(*step); }});
}}

extern "C" int step_bytes() {{ return sizeof(DecodeStep); }}
extern "C" int block_threads() {{ return BLOCK_THREADS; }}
extern "C" int block_heads() {{ return BLOCK_HEADS; }}
"""


class EmulatedKernels:
    """The kernels of one variant; a launch is synchronous."""

    def __init__(self, variant: DecodeVariant) -> None:
        self._library = emulated(variant)

    def launch(self, name: str, grid: tuple[int, int], step: DecodeStep) -> None:
        status = getattr(self._library, f"run_{name}")(ctypes.byref(step), *grid)
        assert status == 0, f"threads of {name} are in a deadlock"


class EmulatedBackend(CudaBackend):
    """The backend with its kernels on the CPU."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape, EmulatedKernels(DecodeVariant.of(shape)))


@functools.cache
def emulated(variant: DecodeVariant) -> ctypes.CDLL:
    """Compile a variant for the CPU, once per process."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "unit.cpp", Path(folder) / "unit.so"
        source.write_text(UNIT)
        macros = [f"-D{name}={value}" for name, value in variant.macros.items()]
        command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wno-unknown-pragmas"]
        done = subprocess.run(
            [*command, *macros, "-o", library, source], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        made = ctypes.CDLL(str(library))
    assert made.step_bytes() == ctypes.sizeof(DecodeStep)
    assert made.block_threads() == BLOCK_THREADS
    assert made.block_heads() == variant.block_heads
    return made
