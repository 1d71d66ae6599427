"""The inputs of a library's build (sources, flags, compiler command) and its entry in the cache."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from quire.errors import NativeUnavailableError
from quire.machine import instruction_sets
from quire.native import compiled_cache
from quire.native.compiler import FLAGS, CppCompiler, command_arguments, extra_flags
from quire.native.sources import Sources


@dataclass(frozen=True, slots=True)
class Build:
    """Inputs of a library's build.

    Attributes:
        sources: Source texts.
        flags: Compiler flags of the instruction set, then those of the user.
        command_arguments: Arguments in the compiler command that `CXX` names.
        suffix: File name suffix of cached libraries.
    """

    sources: Sources
    flags: tuple[str, ...]
    command_arguments: tuple[str, ...]
    suffix: str

    @classmethod
    def here(
        cls, source: Path, replayable: Iterable[str] = (), macros: Iterable[str] = ()
    ) -> Build:
        """Return the build of a source for this machine and environment.

        Args:
            source: A C++ file.
            replayable: Names of its functions whose calls may be replayed.
            macros: Names that the source finds defined.

        Raises:
            NativeUnavailableError: The kernels support no instruction set of this processor.
            SettingsError: The environment names an instruction set that this processor does not
                have, or compiler options that cannot be parsed.
        """
        chosen = instruction_sets.here()
        if isinstance(chosen, str):
            raise NativeUnavailableError(
                f"this processor has no instruction set that the kernels support: {chosen}"
            )
        flags = (*chosen.compiler_flags, *extra_flags())
        sources = Sources.read(source, replayable, macros)
        return cls(sources, flags, command_arguments(), f".{chosen.name}.so")

    def find_cached(self, compiler_version: str | None) -> Path | None:
        """Return the cached library of this compiler version, or of any; None: there is none."""
        return compiled_cache.find(self._parts, self.suffix, compiler=compiler_version)

    def make(self, compiler: CppCompiler) -> bytes:
        """Compile the sources.

        Raises:
            NativeUnavailableError: The compilation fails.
        """
        return compiler.compile(self.sources, self.flags)

    def store(self, code: bytes, compiler: CppCompiler) -> Path | None:
        """Write a compiled library to the cache; None: the cache cannot be written."""
        return compiled_cache.keep(self._parts, code, self.suffix, compiler=compiler.version)

    @property
    def _parts(self) -> tuple[str, ...]:
        return (shlex.join((*self.command_arguments, *FLAGS, *self.flags)), *self.sources.parts)
