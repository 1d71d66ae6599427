"""Source texts of a library, read once, so that the hashed text is the compiled text.

Otherwise, an edit during a compilation would be cached under the hash of another text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

HEADERS = Path(__file__).parent / "include"
INCLUDED = "include"  # folder of quire's headers in a compilation
OWN = "source"  # folder of the source and the headers beside it


@dataclass(frozen=True, slots=True)
class Sources:
    """A C++ source and all headers that it may include.

    Attributes:
        main: Path of the source in the folder of a compilation.
        texts: Texts of all files, by path in that folder.
    """

    main: str
    texts: Mapping[str, str]

    @classmethod
    def read(
        cls, source: Path, replayable: Iterable[str] = (), macros: Iterable[str] = ()
    ) -> Sources:
        """Read a source, the headers beside it and quire's headers.

        Args:
            source: A C++ file.
            replayable: Names of its functions whose calls may be replayed.
            macros: Names that the source finds defined, if it has several variants.
        """
        own = _texts(OWN, [source, *source.parent.glob("*.h")])
        included = _texts(INCLUDED, HEADERS.glob("*.h"))
        main = f"{OWN}/{source.name}"
        defined = "".join(f"#define {name}\n" for name in macros)
        own[main] = defined + own[main] + _replay_text(replayable)
        return cls(main, MappingProxyType(own | included))

    @property
    def parts(self) -> tuple[str, ...]:
        """All paths and texts, for the cache key."""
        return tuple(part for path in sorted(self.texts) for part in (path, self.texts[path]))

    def write(self, folder: Path) -> None:
        """Write the files to an empty folder."""
        for path, text in self.texts.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)


def _replay_text(functions: Iterable[str]) -> str:
    """Return the text behind a source that exports its functions for replays."""
    lines = [f"REPLAYABLE({name})" for name in functions]
    return "".join(f"{line}\n" for line in ("", '#include "replay.h"', *lines)) if lines else ""


def _texts(folder: str, files: Iterable[Path]) -> dict[str, str]:
    return {f"{folder}/{file.name}": file.read_text() for file in files}
