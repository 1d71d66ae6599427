"""Executor with a process for each rank on this machine."""

from collections.abc import Sequence

from quire.interfaces.executor import Executor, WorkerLaunch, WorkerProcess


class ProcessesExecutor(Executor):
    """Executor whose workers are child processes of the engine."""

    def place(self, launch: WorkerLaunch) -> Sequence[WorkerProcess]:
        """Start a process for each rank; if one cannot be started, the others are ended."""
        started: list[WorkerProcess] = []
        try:
            for rank in range(launch.grid.size):
                started.append(launch.spawn(rank))
        except BaseException:
            for process in started:
                process.kill()
            for process in started:
                process.end(0.0)
            raise
        return started
