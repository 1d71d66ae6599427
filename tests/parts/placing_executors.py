"""Executors that place other workers than they should, or none, and keep what they were given."""

from collections.abc import Sequence
from typing import ClassVar

from quire.errors import CapacityError
from quire.interfaces.executor import Executor, Worker, WorkerLaunch, WorkerProcess
from quire.testing.executor import SleepingProcess


class PlacesOne(Executor):
    """Starts one process, whatever the grid."""

    placed: ClassVar[list[SleepingProcess]] = []

    def place(self, launch: WorkerLaunch) -> Sequence[WorkerProcess]:
        self.placed.append(SleepingProcess())
        return [self.placed[-1]]


class PlacesAll(Executor):
    """Starts a process for each rank, none of which ever joins."""

    placed: ClassVar[list[SleepingProcess]] = []

    def place(self, launch: WorkerLaunch) -> Sequence[WorkerProcess]:
        started = [SleepingProcess() for _ in range(launch.grid.size)]
        self.placed.extend(started)
        return started


class PlacesNone(Executor):
    """Finds no place, but keeps the launch."""

    launches: ClassVar[list[WorkerLaunch]] = []

    def place(self, launch: WorkerLaunch) -> Worker:
        self.launches.append(launch)
        raise CapacityError("no device is free")
