"""Try mutants: apply each to a copy of the repository, and run the tests that should notice it.

    python tests/mutants/run.py engine worker    # some tables; the survivors are printed
    python tests/mutants/run.py --match admission  # those with this in their file or meaning
    python tests/mutants/run.py --sample 400     # so many, always the same ones
    python tests/mutants/run.py --revision REV   # the tests and the product of an older commit
    python tests/mutants/run.py --save after     # keep the outcomes, for mutant_report.py

`make mutants` tries all. The exit status is 1 if one survives that is not said to be equivalent.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from random import Random
from time import monotonic

from mutant_copy import Copy
from mutant_outcomes import SURVIVED, read_outcomes, write_outcomes
from mutant_tables import Mutant, read_table, stale, table_names

SEED = 13


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
            raise SystemExit("the tests fail without any mutant: fix them first")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants that are asked for; the exit status is 1 if one survives."""
    options = _parse(arguments)
    mutants = [mutant for name in options.tables or table_names() for mutant in read_table(name)]
    mutants = [mutant for mutant in mutants if options.match in f"{mutant.file} {mutant.what}"]
    if options.revision is None and (lost := stale(mutants)):
        names = "\n".join(f"  {m.table}: {m.file}: {m.what}" for m in lost)
        raise SystemExit(f"these mutants' text is not in its file exactly once:\n{names}")
    saved = read_outcomes(options.save)
    if options.sample is not None:
        mutants = Random(SEED).sample(mutants, min(options.sample, len(mutants)))
    if options.missing:
        mutants = [mutant for mutant in mutants if mutant.key not in saved]
    if not options.skip_check:
        check_unchanged(mutants, options.revision)
    wanted = [mutant for mutant in mutants if not mutant.equivalent or options.equivalent]
    survivors = []
    began_s = monotonic()
    for index, (mutant, outcome) in enumerate(try_all(wanted, options.jobs, options.revision), 1):
        passed_s = monotonic() - began_s
        print(f"{index}/{len(wanted)} {passed_s:.0f} s  {outcome}: {mutant.table}: {mutant.what}")
        sys.stdout.flush()
        if outcome == SURVIVED:
            survivors.append(mutant)
        if options.save:
            saved[mutant.key] = outcome
            write_outcomes(options.save, saved)
    print(f"{len(wanted)} tried, {len(survivors)} survived")
    for mutant in survivors:
        print(f"  {mutant.table}: {mutant.file}: {mutant.what}")
    return 1 if survivors else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Try mutants of the product against the tests.")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(table_names())}")
    parser.add_argument("--match", default="", help="only those whose file or meaning has this")
    parser.add_argument("--sample", type=int, help="only so many, drawn from all of these")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at a time")
    parser.add_argument("--revision", help="a commit to be tried instead of the working tree")
    parser.add_argument("--save", default="", metavar="LABEL", help="keep the outcomes")
    parser.add_argument("--missing", action="store_true", help="only those not saved yet")
    parser.add_argument(
        "--skip-check", action="store_true", help="trust that the tests pass without a mutant"
    )
    parser.add_argument("--equivalent", action="store_true", help="also those said to be so")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
