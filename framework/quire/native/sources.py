"""The texts that a library is made from, read once: what is hashed is what is compiled.

An edit during a compile would else be kept under the hash of a text that nobody compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

HEADERS = Path(__file__).parent / "include"
INCLUDED = "include"  # quire's headers, in the folder of a compile
OWN = "source"  # the source, and the headers beside it


@dataclass(frozen=True, slots=True)
class Sources:
    """A C++ source and all that it may include.

    Attributes:
        main: The path of the source, in the folder of a compile.
        texts: Every file's text, by its path there.
    """

    main: str
    texts: Mapping[str, str]

    @classmethod
    def read(cls, source: Path) -> Sources:
        """Return a source, the headers beside it and quire's."""
        own = _texts(OWN, [source, *source.parent.glob("*.h")])
        included = _texts(INCLUDED, HEADERS.glob("*.h"))
        return cls(f"{OWN}/{source.name}", MappingProxyType(own | included))

    @property
    def parts(self) -> tuple[str, ...]:
        """What tells them from other sources: each path and text."""
        return tuple(part for path in sorted(self.texts) for part in (path, self.texts[path]))

    def write(self, folder: Path) -> None:
        """Write the files into a folder that has none of them."""
        for path, text in self.texts.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)


def _texts(folder: str, files: Iterable[Path]) -> dict[str, str]:
    return {f"{folder}/{file.name}": file.read_text() for file in files}
