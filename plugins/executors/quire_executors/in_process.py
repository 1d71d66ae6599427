"""Executor with one worker in the caller's process: a step is a plain function call."""

from __future__ import annotations

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Executor, Worker, WorkerLaunch


class InProcessExecutor(Executor):
    """Executor whose worker runs in the caller's process.

    Raises:
        RefusedError: The model is to run on more than one device.
    """

    def __init__(self, launch: WorkerLaunch) -> None:
        grid = launch.grid
        if grid.tp_size * grid.pp_size != 1:
            raise RefusedError(
                f"executor 'in_process' runs one worker, but the model needs "
                f"{grid.tp_size * grid.pp_size} (tensor_parallel_size is {grid.tp_size}); choose "
                "an executor that starts processes with --executor, or one device"
            )
        super().__init__(launch)
        self._worker: Worker | None = None

    def start(self) -> Worker:
        """Build the worker.

        Raises:
            EngineDeadError: The worker is running already.
        """
        if self._worker is not None:
            raise EngineDeadError("the worker is running already; shut the executor down first")
        self._worker = self.launch.make(0)
        return self._worker

    def check_health(self) -> None:
        """Check that the worker is running: it lives as long as this process.

        Raises:
            EngineDeadError: The worker was not started, or was shut down.
        """
        if self._worker is None:
            raise EngineDeadError("the worker is not running: it was not started, or was shut down")

    def shutdown(self) -> None:
        """Shut down the worker. May be called twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()
