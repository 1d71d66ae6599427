"""The scorecard of reliability: measures the rows that a script can, and fills docs/reliability.md.

    python benchmarks/reliability/run.py                          all rows, printed
    python benchmarks/reliability/run.py --only R12 R13 --write   these, into the table
    python benchmarks/reliability/run.py --only R15 --soak-s 3600 --write

Each row starts servers of its own, and ends them.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable

from row import Limits, Measured, Row
from rows import ROWS
from scorecard import NOT_YET, RESULTS, entry, fill, is_busy

SCRIPT = "benchmarks/reliability/run.py"


def main() -> int:
    """Run the chosen rows; return 1 if one of them could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=[row.id for row in ROWS])
    parser.add_argument("--soak-s", type=float, default=60.0)
    parser.add_argument("--fuzz", type=int, default=1000, help="random bodies for each route")
    parser.add_argument("--events", type=int, default=10_000, help="for the scheduler")
    parser.add_argument("--write", action="store_true", help="write results and the page")
    arguments = parser.parse_args()
    limits = Limits(soak_s=arguments.soak_s, num_fuzzed=arguments.fuzz, num_events=arguments.events)
    chosen = [row for row in ROWS if not arguments.only or row.id in arguments.only]
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    has_failed = False
    for row in chosen:
        if row.run is None:
            print(f"{row.id}: {NOT_YET}: {row.missing}")
            continue
        measured = _measure(row.run, limits)
        if measured is None:
            print(f"{row.id}: could not be measured", flush=True)
            has_failed = True
            continue
        print(f"{row.id}: {'met' if measured.is_met else 'NOT MET'}: {measured.text}", flush=True)
        if row.is_timed and not measured.is_met and is_busy():
            print(f"{row.id}: not written, because the machine is busy with other work")
            continue
        results[row.id] = entry(measured, _command(row, arguments))
        if arguments.write:
            RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
            fill(ROWS, results)
    return int(has_failed)


def _measure(run: Callable[[Limits], Measured], limits: Limits) -> Measured | None:
    """Return what a row measures; None if it failed, which is printed."""
    try:
        return run(limits)
    except Exception:  # noqa: BLE001 - the other rows are measured
        traceback.print_exc()
        return None


def _command(row: Row, arguments: argparse.Namespace) -> str:
    extra = f" --soak-s {arguments.soak_s:g}" if row.id == "R15" else ""
    extra += f" --fuzz {arguments.fuzz}" if row.id == "R1" and arguments.fuzz != 1000 else ""
    extra += f" --events {arguments.events}" if row.id == "R7" else ""
    return f"python {SCRIPT} --only {row.id}{extra}"


if __name__ == "__main__":
    sys.exit(main())
