"""The C++ compiler of this machine, asked for one thing: a shared library from one source."""

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
SAID_CHARS = 4000  # of a compiler's output, at the end of which the trouble stands
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
COMPILING = threading.BoundedSemaphore(usable_cpus())  # several libraries start at once


@dataclass(frozen=True, slots=True)
class CppCompiler:
    """A compiler that takes GCC's options.

    Attributes:
        command: Its path, and what always follows it.
        version: What it says of itself: what it makes depends on it.
    """

    command: tuple[str, ...]
    version: str

    def compile(self, sources: Sources, flags: Sequence[str]) -> bytes:
        """Return a shared library.

        Raises:
            NativeUnavailableError: It could not, with what it said.
        """
        try:
            with COMPILING, tempfile.TemporaryDirectory(prefix="quire-native-") as folder:
                place, library = Path(folder), Path(folder) / "library.so"
                sources.write(place)
                options = (*FLAGS, *flags, f"-I{place / INCLUDED}")
                files = (str(place / sources.main), "-o", str(library))
                _run((*self.command, *options, *files))
                if not library.exists():
                    raise NativeUnavailableError(f"{self.command[0]} has made nothing")
                return library.read_bytes()
        except OSError as error:
            raise NativeUnavailableError(
                f"nothing can be compiled in {tempfile.gettempdir()}: {error.strerror}"
            ) from error


def find_compiler() -> CppCompiler:
    """Return the compiler that is located, with its version.

    Raises:
        NativeUnavailableError: There is none, or it does not run.
    """
    command = locate_compiler()
    return CppCompiler(command, _run((*command, "--version")).partition("\n")[0])


def locate_compiler() -> tuple[str, ...]:
    """Return the command that `CXX` names, or else the first of the usual ones.

    Raises:
        NativeUnavailableError: There is none.
        SettingsError: The variable cannot be read.
    """
    named = os.environ.get(VARIABLE)
    for candidate in (named,) if named else CANDIDATES:
        words = _words(VARIABLE, candidate)
        if words and (path := shutil.which(words[0])):
            return (path, *words[1:])
    looked_for = f"{named!r} of the variable {VARIABLE}" if named else ", ".join(CANDIDATES)
    raise NativeUnavailableError(
        f"there is no C++ compiler: looked for {looked_for}; install g++, or set {VARIABLE}"
    )


def own_words() -> tuple[str, ...]:
    """Return what `CXX` has behind its first word, be it there or not: results depend on that, too.

    Raises:
        SettingsError: The variable cannot be read.
    """
    return _words(VARIABLE, os.environ.get(VARIABLE, ""))[1:]


def extra_flags() -> tuple[str, ...]:
    """Return the user's own flags, for the source and for the linker.

    Raises:
        SettingsError: They cannot be read.
    """
    return _words(FLAGS_VARIABLE, os.environ.get(FLAGS_VARIABLE, ""))


def _words(variable: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise SettingsError(
            f"the variable {variable} cannot be read as words of a shell: {error}, in {text!r}"
        ) from error


def _run(command: Sequence[str]) -> str:
    """Return what a command prints; nothing that it started outlives this process or a timeout."""
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
        printed, complained = child.communicate(timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        _kill_group(child)
        for pipe in (child.stdout, child.stderr):  # who else holds their ends is not waited for
            if pipe is not None:
                pipe.close()
        child.wait()
        raise NativeUnavailableError(
            f"{command[0]} was not done after {COMPILE_TIMEOUT_S} s"
        ) from error
    finally:
        kill()
        atexit.unregister(kill)
    if child.returncode:
        said = (complained or printed).strip()[-SAID_CHARS:] or "it said nothing"
        raise NativeUnavailableError(f"{command[0]} {_end_of(child.returncode)}:\n{said}")
    return printed


def _kill(child: subprocess.Popen[str]) -> None:
    """End a compiler and its passes; nothing if it is over."""
    if child.poll() is None:
        _kill_group(child)
        child.wait()


def _kill_group(child: subprocess.Popen[str]) -> None:
    """End what a compiler has started, though it be over itself."""
    with suppress(ProcessLookupError):  # the thread that reads its output may have seen its end
        os.killpg(child.pid, signal.SIGKILL)


def _end_of(returncode: int) -> str:
    if returncode > 0:
        return f"failed with status {returncode}"
    killer = signal.Signals(-returncode).name
    return f"was killed by {killer} (is there memory enough?)"
