"""Mutants: small wrong changes to the product, each of which the tests must notice.

`make mutants` applies every mutant of the tables beside this file to a copy of the repository, one
at a time, and runs the tests that should notice it. A table is a room of the house:

    tests = ["tests/framework/engine"]       # those of the room

    [[mutant]]
    file = "framework/quire/engine/admission.py"
    old = "the text that is replaced; it must occur exactly once in the file"
    new = "what takes its place"
    what = "what is wrong then, and what would follow"
    tests = ["tests/framework/engine/test_admission.py"]  # instead of the room's, quicker
    equivalent = "why no test can notice it"              # for those that change nothing

    python tests/mutants/run.py engine worker    # some rooms; names of survivors are printed
    python tests/mutants/run.py --revision REV   # the tests and the product of an older commit
    python tests/mutants/run.py --save after     # keep the outcomes in results/, for report.py
"""

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
SOURCES = ["framework", *sorted(f"plugins/{path.name}" for path in ROOT.glob("plugins/*/"))]
TEST_TIMEOUT_S = 120  # for one test; one that hangs has noticed
RUN_TIMEOUT_S = 900
EXIT_PASSED, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_BROKEN = range(4)
NOTICED, SURVIVED, ABSENT = "noticed", "survived", "not there"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong change.

    Attributes:
        file: Path in the repository.
        old: Text that occurs there once.
        new: What takes its place.
        what: What is wrong then.
        tests: Paths of the tests that should notice.
        equivalent: Why nothing can notice it; empty: something should.
    """

    room: str
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


def rooms() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in HERE.glob("*.toml"))


def read_room(room: str) -> list[Mutant]:
    """Return the mutants of one table.

    Raises:
        SystemExit: The table has an unknown key, or a mutant lacks one.
    """
    table = tomllib.loads((HERE / f"{room}.toml").read_text())
    shared = tuple(table["tests"])
    mutants = []
    for entry in table["mutant"]:
        tests = tuple(entry.pop("tests", shared))
        try:
            mutants.append(Mutant(room=room, tests=tests, **entry))
        except TypeError as error:
            raise SystemExit(f"{room}.toml: {entry.get('what', entry)}: {error}") from error
    return mutants


def stale(mutants: Sequence[Mutant], root: Path = ROOT) -> list[Mutant]:
    """Return the mutants whose text is not in its file exactly once."""
    return [mutant for mutant in mutants if _changed(mutant, root) is None]


class Copy:
    """A copy of the repository in which one mutant at a time is tried.

    Args:
        folder: Where it lies.
        revision: The commit that is copied; None: the working tree.
    """

    def __init__(self, folder: Path, revision: str | None) -> None:
        self.folder = folder
        if revision is None:
            _copy_working_tree(folder)
        else:
            command = ["git", "archive", revision]
            archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(folder, filter="data")
        sources = [str(folder / source) for source in SOURCES]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *sources], check=True)

    def outcome(self, mutant: Mutant) -> str:
        """Try one mutant."""
        changed = _changed(mutant, self.folder)
        if changed is None:
            return ABSENT
        path = self.folder / mutant.file
        original = path.read_text()
        path.write_text(changed)
        try:
            return SURVIVED if self.passes(mutant.tests, "-x") else NOTICED
        finally:
            path.write_text(original)

    def passes(self, tests: Sequence[str], *options: str) -> bool:
        """Run tests; whether all of them pass.

        Raises:
            SystemExit: None could be run.
        """
        there = [test for test in tests if (self.folder / test.partition("::")[0]).exists()]
        if not there:
            raise SystemExit(f"no test of {', '.join(tests)} exists")
        command = [
            sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider",
            "-p", "no:randomly", "--tb=no", f"--timeout={TEST_TIMEOUT_S}", *options, *there,
        ]  # fmt: skip
        roots = [str(self.folder / source) for source in SOURCES]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(roots),
            "PYTHONDONTWRITEBYTECODE": "1",  # compiled above; a mutant's must not stay
            "CI": "1",  # the same examples each time
        }
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return False
        if done.returncode > EXIT_INTERRUPTED:
            raise SystemExit(f"pytest could not run {there}:\n{done.stdout}{done.stderr}")
        return done.returncode == EXIT_PASSED


def try_all(
    mutants: Sequence[Mutant], jobs: int, revision: str | None = None
) -> Iterator[tuple[Mutant, str]]:
    """Try mutants in copies of their own, `jobs` at a time; yields each with its outcome."""
    with tempfile.TemporaryDirectory(prefix="quire-mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for job in range(jobs):
            copies.put(Copy(Path(folder, str(job)), revision))

        def outcome(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                return copy.outcome(mutant)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            yield from zip(mutants, pool.map(outcome, mutants), strict=True)


def check_unchanged(mutants: Sequence[Mutant], revision: str | None) -> None:
    """Run the tests on what is not changed: who fails without a mutant proves nothing.

    Raises:
        SystemExit: They fail.
    """
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="quire-mutants-") as folder:
        if not Copy(Path(folder), revision).passes(tests):
            raise SystemExit("the tests fail without any mutant: mend them first")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants that are asked for; the exit status is 1 if one survives."""
    options = _parse(arguments)
    mutants = [mutant for room in options.rooms or rooms() for mutant in read_room(room)]
    mutants = [mutant for mutant in mutants if options.match in f"{mutant.file} {mutant.what}"]
    if options.revision is None and (lost := stale(mutants)):
        names = "\n".join(f"  {m.room}: {m.file}: {m.what}" for m in lost)
        raise SystemExit(f"these mutants' text is not in its file exactly once:\n{names}")
    saved = _read_saved(options.save)
    if options.missing:
        mutants = [mutant for mutant in mutants if mutant.key not in saved.get(mutant.room, {})]
    if not options.skip_check:
        check_unchanged(mutants, options.revision)
    wanted = [mutant for mutant in mutants if not mutant.equivalent or options.equivalent]
    survivors = []
    began_s = monotonic()
    for index, (mutant, outcome) in enumerate(try_all(wanted, options.jobs, options.revision), 1):
        passed_s = monotonic() - began_s
        print(f"{index}/{len(wanted)} {passed_s:.0f} s  {outcome}: {mutant.room}: {mutant.what}")
        sys.stdout.flush()
        if outcome == SURVIVED:
            survivors.append(mutant)
        if options.save:
            saved.setdefault(mutant.room, {})[mutant.key] = outcome
            _write_saved(options.save, mutant.room, saved[mutant.room])
    print(f"{len(wanted)} tried, {len(survivors)} survived")
    for mutant in survivors:
        print(f"  {mutant.room}: {mutant.file}: {mutant.what}")
    return 1 if survivors else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Try mutants of the product against the tests.")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(rooms())}")
    parser.add_argument("--match", default="", help="only those whose file or meaning has this")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at a time")
    parser.add_argument("--revision", help="a commit to be tried instead of the working tree")
    parser.add_argument("--save", default="", metavar="LABEL", help="keep outcomes in results/")
    parser.add_argument("--missing", action="store_true", help="only those not saved yet")
    parser.add_argument("--skip-check", action="store_true", help="trust the unchanged tests")
    parser.add_argument("--equivalent", action="store_true", help="also those said to be so")
    return parser.parse_args(arguments)


def _copy_working_tree(folder: Path) -> None:
    """Copy what git knows or would take in."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def _changed(mutant: Mutant, root: Path) -> str | None:
    path = root / mutant.file
    return mutant.apply(path.read_text()) if path.is_file() else None


def _read_saved(label: str) -> dict[str, dict[str, str]]:
    """Return the outcomes under a label: room -> key -> outcome."""
    files = RESULTS.glob(f"*.{label}.json") if label else ()
    return {path.name.partition(".")[0]: json.loads(path.read_text()) for path in files}


def _write_saved(label: str, room: str, outcomes: dict[str, str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(outcomes, indent=1, sort_keys=True)
    (RESULTS / f"{room}.{label}.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
