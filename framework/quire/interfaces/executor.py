"""The interface of an executor: start workers, give them steps.

An executor only places workers and carries messages; what a worker does is the host's. A step has
three parts, so that grammar masks can be made while the model runs, and the next step can be
launched before the tokens of this one have reached the host: `execute` launches the forward pass,
`sample` launches the draw, and `collect` waits for its tokens.
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
    """What an executor declares at registration."""

    max_tensor_parallel_size: int = 1


class Worker(ABC):
    """One device's share of the model. The host implements it; an executor calls it."""

    @abstractmethod
    def load(self) -> WorkerInfo:
        """Build the model and load its weights."""

    @abstractmethod
    def allocate(self, plan: KVPlan) -> None:
        """Allocate the KV cache, and make everything ready for steps."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> None:
        """Launch the forward pass of a step."""

    @abstractmethod
    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the draw of a launched step's tokens."""

    @abstractmethod
    def collect(self, plan_id: int) -> StepResult:
        """Wait for the tokens of a step whose draw was launched; steps are collected in order."""

    @abstractmethod
    def control(self, command: WorkerControl) -> Any:
        """Do something between two steps; the answer is the one that the command names."""

    @abstractmethod
    def shutdown(self) -> None:
        """Give everything back. May be called twice."""


@dataclass(frozen=True, slots=True)
class WorkerGrid:
    """How many workers there are, and how they share the model."""

    tp_size: int = 1  # devices that share each layer
    pp_size: int = 1  # stages that share the layers


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """How workers come to be.

    Attributes:
        make: Build the worker of a rank in this process.
        argv: Command line of a worker process, which reads its config from a pipe as msgpack.
        config: That config.
        grid: How many there are to be.
    """

    make: Callable[[int], Worker]
    argv: Sequence[str] = ()
    config: bytes = b""
    grid: WorkerGrid = WorkerGrid()


class Executor(ABC):
    """Workers, wherever they run."""

    def __init__(self, launch: WorkerLaunch) -> None:
        self.launch = launch

    @abstractmethod
    def start(self) -> WorkerInfo:
        """Start the workers and load the weights.

        Returns:
            The smallest memory of all workers, and what failed to load on any of them: whoever
            starts several lets all of them do without what one has to do without.
        """

    @abstractmethod
    def allocate(self, plan: KVPlan) -> None:
        """Allocate the KV cache on every worker."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> None:
        """Launch a step on every worker."""

    @abstractmethod
    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the draw of a launched step's tokens."""

    @abstractmethod
    def collect(self, plan_id: int) -> StepResult:
        """Wait for the tokens of a step; steps are collected in the order of their launch."""

    @abstractmethod
    def control(self, command: WorkerControl) -> Any:
        """Do something on every worker, between two steps; the answer of the first."""

    @abstractmethod
    def check_health(self) -> None:
        """Return if every worker is alive; asked while the engine is idle. Never blocks.

        Raises:
            EngineDeadError: One is not.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the workers. May be called twice."""
