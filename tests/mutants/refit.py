"""Fit the tables of mutants to code that was moved or rewritten.

    python tests/mutants/refit.py          # tell what would be done
    python tests/mutants/refit.py --write  # do it

A mutant whose text is not in its file any more follows it to the one file of the product that has
it; if there is none, the mutant goes. Mutants of the new code in its place are left to you.
"""

import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mutant_tables import HERE, ROOT, Mutant, changed_text, table_names

HEAD = "[[mutant]]\n"
PRODUCT = ("framework/quire/**/*", "plugins/*/quire_*/**/*")
SUFFIXES = {".py", ".cpp", ".h", ".cu"}


def main(arguments: Sequence[str]) -> None:
    """Refit every table."""
    for table in table_names():
        path = HERE / f"{table}.toml"
        shared, *entries = path.read_text().split(HEAD)
        kept = [text for entry in entries if (text := refitted(entry, table)) is not None]
        if kept != entries and "--write" in arguments:
            path.write_text(HEAD.join([shared, *kept]))


def refitted(entry: str, table: str) -> str | None:
    """Return the text of a mutant with the file that it fits; None if it fits none."""
    values = tomllib.loads(entry)
    mutant = Mutant(table=table, **{"tests": (), **values})
    if changed_text(mutant, ROOT) is not None:
        return entry
    homes = [name for name, text in _product().items() if text.count(mutant.old) == 1]
    if len(homes) != 1:
        print(f"{table}: gone from {mutant.file}: {mutant.what}")
        return None
    print(f"{table}: from {mutant.file} to {homes[0]}: {mutant.what}")
    return entry.replace(f'file = "{mutant.file}"', f'file = "{homes[0]}"')


@cache
def _product() -> dict[str, str]:
    """Return the text of every source file, by its path in the repository."""
    files = (path for pattern in PRODUCT for path in ROOT.glob(pattern))
    return {_name(path): path.read_text() for path in files if path.suffix in SUFFIXES}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    main(sys.argv[1:])
