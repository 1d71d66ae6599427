"""Compilation of CUDA C++ to machine code on first use, by NVRTC or nvcc, with a cache on disk.

NVRTC is preferred: it is a library, it comes with torch's CUDA wheels, and it needs no headers for
a source without includes. Otherwise nvcc from CUDA_HOME or the PATH is used. If neither is found,
the error lists what was tried. Compiled code is stored on disk (`compiled_cache`).
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
ALTERNATIVE = "or choose --attention-backend triton"


class Compiler(Protocol):
    """A compiler of CUDA C++."""

    @property
    def version(self) -> str:
        """Kind and version of the compiler, part of the cache key."""

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Return a cubin.

        Raises:
            PluginLoadError: The compilation failed; the message has the compiler's output.
        """


def compile_cubin(
    source: str,
    macros: dict[str, int],
    compute_capability: int,
    compiler: Compiler | None = None,
    folder: Path | None = None,
) -> bytes:
    """Return the machine code of a source, from the cache or newly compiled.

    Args:
        source: CUDA C++ without includes.
        macros: Macros to define.
        compute_capability: Compute capability of the GPU, 90 for 9.0.
        compiler: Compiler to use; None: the first one that is found.
        folder: Folder of the cache; None: the user's cache folder.

    Raises:
        PluginLoadError: There is no compiler, or the compilation failed.
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
    """Return NVRTC if it can be loaded, otherwise nvcc.

    Raises:
        PluginLoadError: Neither is found.
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
        "attention backend cuda compiles its kernels on first use, and no compiler was found: "
        f"tried {', '.join(tried)}, and libnvrtc in the nvidia packages installed beside torch; "
        "install the package nvidia-cuda-nvrtc for torch's CUDA version, set CUDA_HOME, "
        f"{ALTERNATIVE}"
    )


def unavailable_reason() -> str | None:
    """Return why nothing can be compiled on this machine: the probe of the backend."""
    try:
        find_compiler()
    except PluginLoadError as error:
        return str(error)
    return None


def nvrtc_candidates() -> Iterator[str]:
    """Yield candidate paths of NVRTC: installed packages, CUDA_HOME, the system's library path."""
    spec = importlib.util.find_spec("nvidia")  # the namespace package of NVIDIA's wheels
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for location in folders:
        yield from sorted(map(str, Path(location).glob("*/lib/libnvrtc.so.*")), reverse=True)
    if home := os.environ.get("CUDA_HOME"):
        yield from sorted(map(str, Path(home).glob("lib64/libnvrtc.so*")), reverse=True)
    yield from (f"libnvrtc.so{suffix}" for suffix in (".13", ".12", ""))


def nvcc_candidates() -> Iterator[str]:
    """Yield candidate paths of nvcc."""
    if home := os.environ.get("CUDA_HOME"):
        yield str(Path(home) / "bin" / "nvcc")
    yield "nvcc"


class Nvrtc:
    """NVIDIA's compiler library.

    Raises:
        OSError: The library cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(
            self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)),
            "report its version",
        )
        self.version = f"nvrtc {major.value}.{minor.value}"

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Return a cubin."""
        program = ctypes.c_void_p()
        status = self._library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"paged_decode.cu", 0, None, None
        )
        self._check(status, "create a program from the source")
        try:
            array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), array)
            if status:
                raise _compile_error(self.version, options, self._log(program))
            return self._code(program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _code(self, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        status = self._library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        self._check(status, "report the size of the compiled code")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetCUBIN(program, buffer), "return the compiled code")
        return buffer.raw

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        status = self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        self._check(status, "report the size of its log")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(self._library.nvrtcGetProgramLog(program, buffer), "return its log")
        return buffer.value.decode(errors="replace")

    def _check(self, status: int, what: str) -> None:
        if status:
            reason = self._library.nvrtcGetErrorString(status).decode()
            raise PluginLoadError(f"NVRTC could not {what}: {reason}; {ALTERNATIVE}")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """NVIDIA's command-line compiler."""

    path: str

    @property
    def version(self) -> str:
        """Kind and version of the compiler."""
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
    """Run nvcc and return its output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginLoadError(f"{command[0]} could not be run: {error}; {ALTERNATIVE}") from error
    if done.returncode:
        raise _compile_error(command[0], command[1:], done.stdout + done.stderr)
    return done.stdout


def _compile_error(compiler: str, options: Sequence[str], text: str) -> PluginLoadError:
    return PluginLoadError(
        f"{compiler} failed to compile the kernels of attention backend cuda with options "
        f"{' '.join(options)}: {text.strip()[-2000:]}; {ALTERNATIVE}"
    )
