"""One worker in the caller's process: a step is a plain call, and nothing is carried anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Executor, Worker, WorkerLaunch

if TYPE_CHECKING:
    from quire.interfaces.kv_cache import KVPlan
    from quire.messages import RowBitmask, StepPlan, StepResult, WorkerControl, WorkerInfo


class InProcessExecutor(Executor):
    """Calls the worker of rank 0 directly; what it raises reaches the caller as it is.

    Raises:
        RefusedError: More than one device is to share the model.
    """

    def __init__(self, launch: WorkerLaunch) -> None:
        grid = launch.grid
        if grid.tp_size * grid.pp_size != 1:
            raise RefusedError(
                f"executor 'in_process' runs one worker, and {grid.tp_size * grid.pp_size} are to "
                f"share the model (tensor_parallel_size is {grid.tp_size}); choose an executor "
                "that starts processes with --executor, or one device"
            )
        super().__init__(launch)
        self._worker: Worker | None = None

    def start(self) -> WorkerInfo:
        """Build the worker and load the weights.

        Raises:
            EngineDeadError: It is running already.
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
        """Launch the draw of a launched step's tokens."""
        self._running().sample(plan_id, masks)

    def collect(self, plan_id: int) -> StepResult:
        """Wait for the tokens of a step."""
        return self._running().collect(plan_id)

    def control(self, command: WorkerControl) -> Any:
        """Do something between two steps."""
        return self._running().control(command)

    def check_health(self) -> None:
        """Return if the worker is there: in one process it lives as long as we do.

        Raises:
            EngineDeadError: It was not started, or was shut down.
        """
        self._running()

    def shutdown(self) -> None:
        """Let the worker give everything back. May be called twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown()

    def _running(self) -> Worker:
        if self._worker is None:
            raise EngineDeadError("the worker is not running: it was not started, or was shut down")
        return self._worker
