"""CUDA C++ becomes machine code on first use, for the GPU that is there, by what can do it here.

NVRTC comes first: it is a library, torch's CUDA wheels bring it, and it needs no headers for a
source that includes nothing. Then nvcc, of the PATH or of CUDA_HOME. Where there is neither, the
error says what was looked for and where. What is compiled is kept on disk (`compiled_cache`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quire.errors import PluginLoadError
from quire.native.compiled_cache import cached

STANDARD = "--std=c++17"
COMPILE_TIMEOUT_S = 300
WAY_OUT = "or choose --attention-backend triton"


class Compiler(Protocol):
    """Something that compiles CUDA C++."""

    @property
    def version(self) -> str:
        """Its kind and version: what it makes depends on them."""

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Return a cubin.

        Raises:
            PluginLoadError: It could not, with what it said.
        """


def compile_cubin(
    source: str,
    macros: dict[str, int],
    compute_capability: int,
    compiler: Compiler | None = None,
    folder: Path | None = None,
) -> bytes:
    """Return the machine code of a source, compiled now or before.

    Args:
        source: CUDA C++ that includes nothing.
        macros: Defined before it.
        compute_capability: Of the GPU: 90 for 9.0.
        compiler: None: the one that is found.
        folder: Where compiled code is kept; None: the user's.

    Raises:
        PluginLoadError: There is no compiler, or it refused the source.
    """
    chosen = find_compiler() if compiler is None else compiler
    options = (
        f"--gpu-architecture=sm_{compute_capability}",
        STANDARD,
        *(f"-D{name}={value}" for name, value in macros.items()),
    )
    parts = (chosen.version, " ".join(options), source)
    return cached(parts, lambda: chosen.compile(source, options), ".cubin", folder)


def find_compiler() -> Compiler:
    """Return NVRTC, or else nvcc.

    Raises:
        PluginLoadError: There is neither.
    """
    tried = []
    for path in nvrtc_candidates():
        try:
            return Nvrtc(path)
        except OSError as error:
            tried.append(f"{path} ({error})")
    for path in nvcc_candidates():
        if found := shutil.which(path):
            return Nvcc(found)
        tried.append(path)
    raise PluginLoadError(
        "attention backend cuda compiles its kernels on first use, and there is no compiler: "
        f"tried {', '.join(tried)}, and libnvrtc of the packages next to torch; install the "
        f"package nvidia-cuda-nvrtc of the CUDA version of torch, set CUDA_HOME, {WAY_OUT}"
    )


def nvrtc_candidates() -> Iterator[str]:
    """Return where NVRTC may be: installed packages, CUDA_HOME, the system's library path."""
    spec = importlib.util.find_spec("nvidia")  # the namespace of NVIDIA's packages
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        yield from sorted(map(str, Path(place).glob("*/lib/libnvrtc.so.*")), reverse=True)
    if home := os.environ.get("CUDA_HOME"):
        yield from sorted(map(str, Path(home).glob("lib64/libnvrtc.so*")), reverse=True)
    yield from (f"libnvrtc.so{suffix}" for suffix in (".13", ".12", ""))


def nvcc_candidates() -> Iterator[str]:
    """Return where nvcc may be."""
    if home := os.environ.get("CUDA_HOME"):
        yield str(Path(home) / "bin" / "nvcc")
    yield "nvcc"


class Nvrtc:
    """NVIDIA's compiler library.

    Raises:
        OSError: It cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "start")
        self.version = f"nvrtc {major.value}.{minor.value}"

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Return a cubin."""
        program = ctypes.c_void_p()
        status = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"paged_decode.cu", 0, None, None
        )
        self._check(status, "take the source")
        try:
            array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), array)
            if status:
                raise _refused(self.version, options, self._log(program))
            return self._code(program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _code(self, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        status = self._library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        self._check(status, "say how long the code is")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetCUBIN(program, buffer), "hand over the code")
        return buffer.raw

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        status = self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        self._check(status, "say how long its log is")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetProgramLog(program, buffer), "hand over its log")
        return buffer.value.decode(errors="replace")

    def _check(self, status: int, what: str) -> None:
        if status:
            reason = self._library.nvrtcGetErrorString(status).decode()
            raise PluginLoadError(f"NVRTC could not {what}: {reason}; {WAY_OUT}")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """NVIDIA's compiler program."""

    path: str

    @property
    def version(self) -> str:
        """Return its kind and version."""
        text = _run([self.path, "--version"])
        release = re.search(r"V\d[\d.]*", text)
        return f"nvcc {release.group() if release else text.strip()}"

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Return a cubin."""
        with tempfile.TemporaryDirectory() as folder:
            written, made = Path(folder) / "paged_decode.cu", Path(folder) / "paged_decode.cubin"
            written.write_text(source)
            _run([self.path, "--cubin", *options, "-o", str(made), str(written)])
            return made.read_bytes()


def _run(command: list[str]) -> str:
    """Run nvcc and return what it says."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginLoadError(f"{command[0]} could not be run: {error}; {WAY_OUT}") from error
    if done.returncode:
        raise _refused(command[0], command[1:], done.stdout + done.stderr)
    return done.stdout


def _refused(who: str, options: Sequence[str], text: str) -> PluginLoadError:
    return PluginLoadError(
        f"{who} could not compile the kernels of attention backend cuda with "
        f"{' '.join(options)}: {text.strip()[-2000:]}; {WAY_OUT}"
    )
