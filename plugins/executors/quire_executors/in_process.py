"""Executor with one worker in the caller's process: a step is a plain function call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Executor, Worker, WorkerLaunch

if TYPE_CHECKING:
    from quire.interfaces.kv_cache import KVPlan
    from quire.messages import RowBitmask, StepPlan, StepResult, WorkerControl, WorkerInfo


class InProcessExecutor(Executor):
    """Executor that calls the worker of rank 0 directly; its errors reach the caller unchanged.

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

    def start(self) -> WorkerInfo:
        """Build the worker and load the weights.

        Raises:
            EngineDeadError: The worker is running already.
        """
        if self._worker is not None:
            raise EngineDeadError("the worker is running already; shut the executor down first")
        self._worker = self.launch.make(0)
        return self._worker.load()

    def allocate(self, plan: KVPlan) -> None:
        """Allocate the KV cache."""
        self._running().allocate(plan)

    def execute(self, plan: StepPlan) -> None:
        """Launch a step."""
        self._running().execute(plan)

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the sampling of a launched step."""
        self._running().sample(plan_id, masks)

    def collect(self, plan_id: int) -> StepResult:
        """Wait for the result of a step."""
        return self._running().collect(plan_id)

    def control(self, command: WorkerControl) -> Any:
        """Run a command on the worker between two steps."""
        return self._running().control(command)

    def check_health(self) -> None:
        """Check that the worker is running: it lives as long as this process.

        Raises:
            EngineDeadError: The worker was not started, or was shut down.
        """
        self._running()

    def shutdown(self) -> None:
        """Shut down the worker. May be called twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()

    def _running(self) -> Worker:
        if self._worker is None:
            raise EngineDeadError("the worker is not running: it was not started, or was shut down")
        return self._worker
