"""The C++ compiler of this machine: search, and compilation of a source to a shared library."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quire.errors import NativeUnavailableError, SettingsError
from quire.machine.cores import usable_cpus
from quire.native.sources import INCLUDED, Sources

VARIABLE = "CXX"
FLAGS_VARIABLE = "QUIRE_CXXFLAGS"
CANDIDATES = ("g++", "c++", "clang++")
COMPILE_TIMEOUT_S = 300
MAX_OUTPUT_CHARS = 4000  # from the end of a compiler's output, where the errors are
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-pipe",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
)
COMPILING = threading.BoundedSemaphore(usable_cpus())  # limit of concurrent compilations


@dataclass(frozen=True, slots=True)
class CppCompiler:
    """A compiler with GCC's options.

    Attributes:
        command: Path of the compiler and its fixed arguments.
        version: First line of its `--version`, which is part of the cache key.
    """

    command: tuple[str, ...]
    version: str

    def compile(self, sources: Sources, flags: Sequence[str]) -> bytes:
        """Return a compiled shared library.

        Raises:
            NativeUnavailableError: The compilation failed; the message has the compiler's output.
        """
        try:
            with COMPILING, tempfile.TemporaryDirectory(prefix="quire-native-") as folder:
                root, library = Path(folder), Path(folder) / "library.so"
                sources.write(root)
                options = (*FLAGS, *flags, f"-I{root / INCLUDED}")
                files = (str(root / sources.main), "-o", str(library))
                _run((*self.command, *options, *files))
                if not library.exists():
                    raise NativeUnavailableError(f"{self.command[0]} wrote no library")
                return library.read_bytes()
        except OSError as error:
            raise NativeUnavailableError(
                f"cannot compile in the folder {tempfile.gettempdir()}: {error.strerror}"
            ) from error


def find_compiler() -> CppCompiler:
    """Return this machine's compiler with its version.

    Raises:
        NativeUnavailableError: There is no compiler, or it does not run.
    """
    command = locate_compiler()
    return CppCompiler(command, _run((*command, "--version")).partition("\n")[0])


def locate_compiler() -> tuple[str, ...]:
    """Return the compiler command in `CXX`, or else the first of `CANDIDATES` that is installed.

    Raises:
        NativeUnavailableError: There is no compiler.
        SettingsError: `CXX` cannot be parsed.
    """
    named = os.environ.get(VARIABLE)
    for candidate in (named,) if named else CANDIDATES:
        words = _split_words(VARIABLE, candidate)
        if words and (path := shutil.which(words[0])):
            return (path, *words[1:])
    looked_for = f"{named!r} of the variable {VARIABLE}" if named else ", ".join(CANDIDATES)
    raise NativeUnavailableError(
        f"no C++ compiler found: looked for {looked_for}; install g++, or set {VARIABLE}"
    )


def command_arguments() -> tuple[str, ...]:
    """Return the arguments in `CXX`, even if its compiler is not installed: they are in cache keys.

    Raises:
        SettingsError: `CXX` cannot be parsed.
    """
    return _split_words(VARIABLE, os.environ.get(VARIABLE, ""))[1:]


def extra_flags() -> tuple[str, ...]:
    """Return the user's flags for compiler and linker, from `QUIRE_CXXFLAGS`.

    Raises:
        SettingsError: The variable cannot be parsed.
    """
    return _split_words(FLAGS_VARIABLE, os.environ.get(FLAGS_VARIABLE, ""))


def _split_words(variable: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(
            f"the variable {variable} cannot be parsed as a shell command line: {error}, in "
            f"{text!r}"
        ) from error


def _run(command: Sequence[str]) -> str:
    """Return the output of a command; its processes end with this process or after the timeout."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
        )
    except OSError as error:
        raise NativeUnavailableError(f"{command[0]} could not be run: {error}") from error
    kill = partial(_kill, child)
    atexit.register(kill)
    try:
        stdout, stderr = child.communicate(timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        _kill_group(child)
        for pipe in (child.stdout, child.stderr):  # do not wait for other holders of the pipes
            if pipe is not None:
                pipe.close()
        child.wait()
        raise NativeUnavailableError(
            f"{command[0]} did not finish within {COMPILE_TIMEOUT_S} s"
        ) from error
    finally:
        kill()
        atexit.unregister(kill)
    if child.returncode:
        output = (stderr or stdout).strip()[-MAX_OUTPUT_CHARS:] or "it printed nothing"
        raise NativeUnavailableError(f"{command[0]} {_describe_exit(child.returncode)}:\n{output}")
    return stdout


def _kill(child: subprocess.Popen[str]) -> None:
    """Kill a compiler and its child processes, if it still runs."""
    if child.poll() is None:
        _kill_group(child)
        child.wait()


def _kill_group(child: subprocess.Popen[str]) -> None:
    """Kill the process group of a compiler, even if the compiler itself has ended."""
    with suppress(ProcessLookupError):  # the group may have ended in the meantime
        os.killpg(child.pid, signal.SIGKILL)


def _describe_exit(returncode: int) -> str:
    if returncode > 0:
        return f"failed with status {returncode}"
    killer = signal.Signals(-returncode).name
    return f"was killed by {killer} (is there enough memory?)"
