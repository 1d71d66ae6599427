"""Time of the commands that must be light, as whole processes.

    python benchmarks/commands.py [--runs 20]

A line for each command: the median and the slowest of all runs, in milliseconds. The aim is 300.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("--help", "plugins list", "plugins doctor", "explain demo", "serve --help")


def measure(argv: list[str], num_runs: int) -> list[float]:
    """Return the milliseconds of each run, after one that fills the caches."""
    times = []
    for _ in range(num_runs + 1):
        started = time.perf_counter()
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
        times.append(1000 * (time.perf_counter() - started))
    return times[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    num_runs = parser.parse_args().runs
    quire = str(Path(sys.executable).parent / "quire")
    print(f"{'command':<24}{'median ms':>10}{'slowest ms':>12}")
    for command in COMMANDS:
        times = measure([quire, *command.split()], num_runs)
        print(f"quire {command:<18}{statistics.median(times):>10.0f}{max(times):>12.0f}")


if __name__ == "__main__":
    main()
