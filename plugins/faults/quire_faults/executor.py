"""Executor that injects faults into the placing of workers, into their start and their steps."""

from collections.abc import Sequence
from typing import Any

from quire.interfaces.executor import Executor, StepRunner, Worker, WorkerLaunch, WorkerProcess
from quire.interfaces.kv_cache import KVPlan
from quire.messages import RowBitmask, StepPlan, StepResult, WorkerControl, WorkerInfo
from quire_faults.injection import injection


class FaultyExecutor(Executor):
    """Executor with one worker in this process, or a process for each of several ranks.

    The faults of `worker` and `step` are injected into a worker in this process. Ranks in other
    processes have those of their attention backend and sampler step.
    """

    def place(self, launch: WorkerLaunch) -> Worker | Sequence[WorkerProcess]:
        """Start the workers."""
        injection().reach("executor.place")
        if launch.grid.size == 1:
            return FaultyWorker(launch.make())
        started: list[WorkerProcess] = []
        try:
            started.extend(launch.spawn(rank) for rank in range(launch.grid.size))
        except BaseException:
            for process in started:
                process.kill()
                process.end(0.0)
            raise
        return started


class FaultyWorker(Worker):
    """Worker around another one."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def load(self) -> WorkerInfo:
        """Load the weights."""
        injection().reach("worker.load")
        return self._worker.load()

    def allocate(self, plans: Sequence[KVPlan]) -> StepRunner:
        """Allocate the KV cache."""
        injection().reach("worker.allocate")
        return FaultyRunner(self._worker.allocate(plans))

    def check_health(self) -> None:
        """Check that the worker is alive."""
        injection().reach("worker.check_health")
        self._worker.check_health()

    def shutdown(self) -> None:
        """Release all resources."""
        self._worker.shutdown()


class FaultyRunner(StepRunner):
    """Runner of steps around another one; `launch` calls `execute` and `sample`."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def execute(self, plan: StepPlan) -> None:
        """Launch the forward pass of a step."""
        injection().reach("step.execute")
        self._runner.execute(plan)

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the sampling of a step."""
        injection().reach("step.sample")
        self._runner.sample(plan_id, masks)

    def collect(self, plan_id: int) -> StepResult:
        """Wait for the sampled tokens of a step."""
        injection().reach("step.collect")
        return self._runner.collect(plan_id)

    def is_ready(self, plan_id: int) -> bool:
        """Return whether the tokens of a step are there."""
        return self._runner.is_ready(plan_id)

    def control(self, command: WorkerControl) -> Any:
        """Run a command between two steps."""
        injection().reach("worker.control")
        return self._runner.control(command)
