"""What a library of one source is made from here and now, and where the result is kept."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from quire.errors import NativeUnavailableError
from quire.machine import instruction_sets
from quire.native import compiled_cache
from quire.native.compiler import FLAGS, CppCompiler, extra_flags, own_words
from quire.native.sources import Sources


@dataclass(frozen=True, slots=True)
class Build:
    """What a library is made from.

    Attributes:
        sources: The texts.
        flags: Of the instruction set, and the user's.
        own_words: Of the compiler's command, behind its name.
        suffix: How the names of kept libraries end.
    """

    sources: Sources
    flags: tuple[str, ...]
    own_words: tuple[str, ...]
    suffix: str

    @classmethod
    def here(cls, source: Path) -> Build:
        """Return what a source is made into in this environment.

        Raises:
            NativeUnavailableError: There is no instruction set for this processor.
            SettingsError: The environment names an instruction set that is not there, or words for
                the compiler that cannot be read.
        """
        chosen = instruction_sets.here()
        if isinstance(chosen, str):
            raise NativeUnavailableError(f"this processor has no known instruction set: {chosen}")
        flags = (*chosen.compiler_flags, *extra_flags())
        return cls(Sources.read(source), flags, own_words(), f".{chosen.name}.so")

    def kept(self, maker: str | None) -> Path | None:
        """Return what was made before by this version of a compiler, or by any; None: nothing."""
        return compiled_cache.find(self._parts, self.suffix, maker=maker)

    def make(self, compiler: CppCompiler) -> bytes:
        """Compile.

        Raises:
            NativeUnavailableError: It fails.
        """
        return compiler.compile(self.sources, self.flags)

    def keep(self, code: bytes, compiler: CppCompiler) -> Path | None:
        """Keep what was made; None: it cannot be kept."""
        return compiled_cache.keep(self._parts, code, self.suffix, maker=compiler.version)

    @property
    def _parts(self) -> tuple[str, ...]:
        return (shlex.join((*self.own_words, *FLAGS, *self.flags)), *self.sources.parts)
