"""Tables of mutants: small wrong changes to the product, each of which the tests must notice.

A table has the mutants of one package or subject, and is a file beside this one:

    tests = ["tests/framework/engine"]       # of all its mutants

    [[mutant]]
    file = "framework/quire/engine/scheduling/admission.py"
    old = "the text that is replaced; it must occur exactly once in the file"
    new = "what takes its place"
    what = "what is wrong then, and what would follow"
    tests = ["tests/framework/engine/scheduling/test_admission.py"]  # instead of the table's
    equivalent = "why no test can notice it"              # for those that change nothing
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong change.

    Attributes:
        table: Name of its table.
        file: Path in the repository.
        old: Text that occurs there once.
        new: What takes its place.
        what: What is wrong then.
        tests: Paths of the tests that should notice.
        equivalent: Why nothing can notice it; empty: something should.
    """

    table: str
    file: str
    old: str
    new: str
    what: str
    tests: tuple[str, ...]
    equivalent: str = ""

    @property
    def key(self) -> str:
        """Name of the mutant in files of outcomes: it changes with the mutant."""
        return sha256("\0".join((self.file, self.old, self.new)).encode()).hexdigest()[:16]

    def apply(self, text: str) -> str | None:
        """Return the changed text of the file; None if what it changes is not there once."""
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def table_names() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def read_table(name: str) -> list[Mutant]:
    """Return the mutants of one table.

    Raises:
        SystemExit: The table has an unknown key, or a mutant lacks one.
    """
    content = tomllib.loads((HERE / f"{name}.toml").read_text())
    shared = tuple(content["tests"])
    mutants = []
    for entry in content["mutant"]:
        tests = tuple(entry.pop("tests", shared))
        try:
            mutants.append(Mutant(table=name, tests=tests, **entry))
        except TypeError as error:
            raise SystemExit(f"{name}.toml: {entry.get('what', entry)}: {error}") from error
    return mutants


def stale(mutants: Sequence[Mutant], root: Path = ROOT) -> list[Mutant]:
    """Return the mutants whose text is not in its file exactly once."""
    return [mutant for mutant in mutants if changed_text(mutant, root) is None]


def changed_text(mutant: Mutant, root: Path) -> str | None:
    """Return a mutant's file as it would be under `root`; None if the mutant does not fit it."""
    path = root / mutant.file
    return mutant.apply(path.read_text()) if path.is_file() else None
