"""The interface of an executor, which starts workers; quire implements the workers themselves.

An executor starts workers and returns them as one. A worker loads the weights and allocates the KV
cache, which returns the runner of its steps. A step has three phases: `execute` launches the
forward pass, `sample` launches sampling, and `collect` waits for the sampled tokens. So grammar
masks can be computed while the model runs, and the next step can be launched before the tokens of
this one have reached the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.interfaces.kv_cache import KVPlan
    from quire.messages import RowBitmask, StepPlan, StepResult, WorkerControl, WorkerInfo


@dataclass(frozen=True, slots=True)
class ExecutorCapabilities:
    """Capabilities of an executor, declared at registration.

    Attributes:
        max_tensor_parallel_size: Largest number of devices that each layer is sharded over; None:
            any.
        max_pipeline_parallel_size: Largest number of pipeline stages; None: any.
        spans_machines: True if it places ranks on other machines too, so that a grid may have more
            ranks than this machine has devices.
    """

    max_tensor_parallel_size: int | None = 1
    max_pipeline_parallel_size: int | None = 1
    spans_machines: bool = False


class StepRunner(ABC):
    """Runs the steps of a worker whose KV cache is allocated; all calls come from one thread."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> None:
        """Launch the forward pass of a step."""

    @abstractmethod
    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the sampling of a step whose forward pass was launched."""

    @abstractmethod
    def collect(self, plan_id: int) -> StepResult:
        """Wait for the sampled tokens of a step; steps are collected in launch order."""

    @abstractmethod
    def control(self, command: WorkerControl) -> Any:
        """Run a command between two steps, and return its result."""


class Worker(ABC):
    """One device's shard of the model, or several workers that an executor returns as one."""

    @abstractmethod
    def load(self) -> WorkerInfo:
        """Build the model and load its weights."""

    @abstractmethod
    def allocate(self, plan: KVPlan) -> StepRunner:
        """Allocate the KV cache, and prepare for steps.

        Returns:
            The runner of the steps, used until `shutdown` is called. For several workers, its calls
            reach each of them, and results are those of rank 0.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Release all resources. May be called twice."""


@dataclass(frozen=True, slots=True)
class WorkerGrid:
    """Number of workers and how the model is sharded over them: `rank = stage * tp_size + tp`."""

    tp_size: int = 1  # devices that each layer is sharded over
    pp_size: int = 1  # pipeline stages that the layers are divided into

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.tp_size * self.pp_size

    def place(self, rank: int) -> tuple[int, int]:
        """Return the pipeline stage of a rank, and its rank in that stage's group."""
        return divmod(rank, self.tp_size)


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """Instructions to start the workers.

    Attributes:
        make: Function that builds the worker of a rank in this process.
        argv: Command line of a worker process, which reads its config from a pipe as msgpack.
        config: Config for worker processes, encoded as msgpack.
        grid: Number of workers to start.
    """

    make: Callable[[int], Worker]
    argv: Sequence[str] = ()
    config: bytes = b""
    grid: WorkerGrid = WorkerGrid()


class Executor(ABC):
    """Starts workers, checks that they are alive, and stops them."""

    def __init__(self, launch: WorkerLaunch) -> None:
        self.launch = launch

    @abstractmethod
    def start(self) -> Worker:
        """Start the workers, and return them as one.

        Raises:
            EngineDeadError: They are running already.
        """

    @abstractmethod
    def check_health(self) -> None:
        """Check that every worker is alive. Called while the engine is idle; never blocks.

        Raises:
            EngineDeadError: A worker is dead, or none is running.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the workers. May be called twice."""
