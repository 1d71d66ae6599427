"""Rounds in which engines take turns in a changing order, and the other load on the machine.

A B C, A C B, C A B, ...: each round starts one engine later and every second one is reversed, so a
drift of the machine affects all engines alike, and no engine runs twice in a row. Ratios are taken
within a round. The first engine runs as two processes; the ratio of the two is the noise.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_process import EngineFailedError

Turn = Callable[[str], Mapping[str, float]]  # runs an engine once; returns its figures
PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Times of all processors since the machine started, in clock ticks.

    Attributes:
        all: Total, idle time included.
        busy: Time of the system and all its processes.
        stolen: Time that the host gave to other machines.
        ours: Time of this process, and of its running and ended children.
    """

    all: float
    busy: float
    stolen: float
    ours: float

    @classmethod
    def now(cls) -> CpuTimes:
        """Read the times; zeros where the system has none."""
        if not (PROC / "stat").exists():
            return cls(0, 0, 0, 0)
        fields = [int(word) for word in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = fields
        busy = user + nice + system + interrupts + soft_interrupts
        return cls(busy + idle + waiting + stolen, busy, stolen, _own_ticks())

    def since(self, before: CpuTimes) -> dict[str, float]:
        """Return the fractions of the processors' time taken by the host and by other processes."""
        total = max(1, self.all - before.all)
        others = (self.busy - before.busy) - (self.ours - before.ours)
        return {
            "stolen": round((self.stolen - before.stolen) / total, 4),
            "others": round(max(0.0, others / total), 4),
        }


def take_turns(labels: Sequence[str], rounds: int, turn: Turn) -> Iterator[dict[str, Any]]:
    """Yield each round when it is done: the figures of every engine, and the other load.

    An engine that fails is left out from then on, and the round has its error.
    """
    working = list(labels)
    for index in range(rounds):
        before, started = CpuTimes.now(), time.monotonic()
        figures: dict[str, dict[str, float]] = {}
        failed: dict[str, str] = {}
        for label in order(working, index):
            try:
                figures[label] = dict(turn(label))
            except EngineFailedError as error:
                failed[label] = str(error)
        working = [label for label in working if label not in failed]
        yield {
            "figures": {label: figures[label] for label in working},
            "failed": failed,
            **CpuTimes.now().since(before),
            "load_average": round(os.getloadavg()[0], 2),
            "seconds": round(time.monotonic() - started, 1),
        }


def order(labels: Sequence[str], index: int) -> list[str]:
    """Return the order of the engines in a round."""
    begin = index % max(1, len(labels))
    turned = [*labels[begin:], *labels[:begin]]
    return turned if index % 2 == 0 else turned[::-1]


def _own_ticks() -> float:
    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(TICKS_PER_S * (each.ru_utime + each.ru_stime) for each in ended) + _living_ticks()


def _living_ticks() -> int:
    """Return the ticks of all descendants of this process, and of their ended children."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(entry.name)] = int(fields[1])
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    return sum(ticks[pid] for pid in ticks if _is_under(pid, os.getpid(), parents))


def _is_under(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) != 0:
        if pid == ancestor:
            return True
    return False
