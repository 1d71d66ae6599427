"""Time of an all-reduce between CPU ranks of one machine: shared memory against Gloo.

    python benchmarks/collectives.py            # prints the table
    python benchmarks/collectives.py --write    # and writes benchmarks/results/collectives.md

Each rank is a process with one thread, which calls one all-reduce directly after the other; rank 0
measures. With more ranks than cores, a rank that waits sleeps.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch

from quire.layers.parallel import TensorParallelGroup
from quire.machine.cores import usable_cores
from quire.worker.device.distributed_group import DistributedGroup
from quire.worker.device.group_place import GroupPlace
from quire.worker.device.shared_memory_group import SharedMemoryGroup

RESULTS = Path(__file__).parent / "results" / "collectives.md"
KINDS = ("shared memory", "gloo")
KIB = (4, 16, 64, 256, 1024)
WARM_UP_CALLS = 20
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Timing:
    """Times of one all-reduce in microseconds."""

    kind: str
    num_ranks: int
    kib: int
    calls: int
    least: float
    median: float
    p99: float


class FolderExchange:
    """Exchange of addresses through files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        """Publish a value."""
        draft = self._folder / f"{os.getpid()}.draft"
        draft.write_bytes(value)
        draft.rename(self._folder / key.replace("/", "-"))

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a value."""
        path, deadline = self._folder / key.replace("/", "-"), time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(key)
            time.sleep(0.005)
        return path.read_bytes()


def main() -> None:
    """Run all ranks, or, started by that, one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each kind and size")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rank", nargs=4, metavar=("KIND", "FOLDER", "RANK", "SIZE"))
    options = parser.parse_args()
    if options.rank is not None:
        kind, folder, rank, size = options.rank
        print(json.dumps(run_rank(kind, Path(folder), int(rank), int(size), options.seconds)))
        return
    load = os.getloadavg()[0]
    timings = [
        timing
        for size in options.ranks
        for kind in KINDS
        for timing in run_ranks(kind, size, options.seconds)
    ]
    text = report(timings, load)
    print(text, end="")
    if options.write:
        RESULTS.write_text(text)


def run_ranks(kind: str, size: int, seconds: float) -> list[Timing]:
    """Run a group in processes, and return the times of its rank 0."""
    command = [sys.executable, __file__, "--seconds", str(seconds), "--rank"]
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [*command, kind, folder, str(rank), str(size)],
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                text=True,
            )
            for rank in range(size)
        ]
        try:
            outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    return [Timing(**timing) for timing in json.loads(outputs[0])]


def run_rank(
    kind: str, folder: Path, rank: int, size: int, seconds: float
) -> list[dict[str, object]]:
    """Join the group, and time its all-reduces of each size."""
    torch.set_num_threads(1)
    place = GroupPlace(rank=rank, ranks=range(size), ranks_on_node=size, timeout_s=TIMEOUT_S)
    exchange = FolderExchange(folder)
    group: TensorParallelGroup
    if kind == "gloo":
        device = torch.device("cpu")
        group = DistributedGroup.join(exchange, "group", place, device, "127.0.0.1")
    else:
        group = SharedMemoryGroup.join(exchange, "group", place)
    timings = []
    for kib in KIB:
        times = sorted(time_calls(group, kib * 256, seconds))
        least, median, p99 = (times[int(len(times) * part)] for part in (0, 0.5, 0.99))
        timings.append(asdict(Timing(kind, size, kib, len(times), least, median, p99)))
    group.all_reduce(torch.zeros(1))  # no rank leaves before the others have read
    return timings


def time_calls(group: TensorParallelGroup, count: int, seconds: float) -> list[float]:
    """Return the microseconds of each call on `count` numbers; all ranks make as many."""
    x = torch.zeros(count)
    started = time.perf_counter()
    for _ in range(WARM_UP_CALLS):
        group.all_reduce(x)
    each = (time.perf_counter() - started) / WARM_UP_CALLS
    wanted = torch.tensor([min(50_000.0, max(50.0, seconds / each))])
    calls = int(group.all_reduce(wanted).item() / group.size)
    times = []
    for _ in range(calls):
        began = time.perf_counter_ns()
        group.all_reduce(x)
        times.append((time.perf_counter_ns() - began) / 1e3)
    return times


def report(timings: list[Timing], load: float) -> str:
    """Return the table as Markdown."""
    cores, _ = usable_cores()
    lines = [
        "# All-reduce between ranks of one machine",
        "",
        f"`python benchmarks/collectives.py --write`, {date.today()}: {processor()}, "
        f"{cores} cores, torch {torch.__version__}; load average before the "
        f"run {load:.1f}. float32, microseconds on rank 0, one call directly after the other.",
        "",
        "| ranks | KiB | shared memory: least | median | p99 | Gloo: least | median | p99 | "
        "Gloo / shared memory, medians |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    found = {(timing.kind, timing.num_ranks, timing.kib): timing for timing in timings}
    for size in sorted({timing.num_ranks for timing in timings}):
        for kib in KIB:
            ours, theirs = (found[kind, size, kib] for kind in KINDS)
            cells = [
                f"{value:.1f}"
                for timing in (ours, theirs)
                for value in (timing.least, timing.median, timing.p99)
            ]
            ratio = f"{theirs.median / ours.median:.1f}"
            lines.append(f"| {' | '.join([str(size), str(kib), *cells, ratio])} |")
    return "\n".join(lines) + "\n"


def processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
