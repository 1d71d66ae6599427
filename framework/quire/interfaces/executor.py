"""The interface of an executor, which places workers; quire implements all that workers do.

An executor decides where the workers of a grid run: one in the caller's process, or a process for
each rank, here or on other machines. quire connects to them, sends steps, waits for results within
deadlines, and ends all of them if one fails.

A worker loads its shard of the weights and allocates its KV cache, which returns the runner of its
steps. A step has three phases: `execute` launches the forward pass, `sample` launches sampling, and
`collect` waits for the sampled tokens. So grammar masks can be computed while the model runs, and
the next step can be launched before the tokens of this one have reached the host.
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

    def launch(self, plan: StepPlan, masks: Sequence[RowBitmask] = ()) -> None:
        """Launch the forward pass and the sampling of a step whose masks are known."""
        self.execute(plan)
        self.sample(plan.plan_id, masks)

    @abstractmethod
    def collect(self, plan_id: int) -> StepResult:
        """Wait for the sampled tokens of a step; steps are collected in launch order."""

    def is_ready(self, plan_id: int) -> bool:
        """Return whether `collect` would return a step's tokens without waiting for a device."""
        del plan_id
        return True

    @abstractmethod
    def control(self, command: WorkerControl) -> Any:
        """Run a command between two steps, and return its result."""


class Worker(ABC):
    """One rank of the grid, or all ranks as one."""

    @abstractmethod
    def load(self) -> WorkerInfo:
        """Build the model and load its weights."""

    @abstractmethod
    def allocate(self, plans: Sequence[KVPlan]) -> StepRunner:
        """Allocate the KV cache, and prepare for steps.

        Args:
            plans: Plan of each pipeline stage, in order.

        Returns:
            The runner of the steps, used until `shutdown` is called.
        """

    @abstractmethod
    def check_health(self) -> None:
        """Check that every rank is alive. Called while the engine is idle; never blocks.

        Raises:
            EngineDeadError: A rank has died, or the worker was shut down.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Release all resources. May be called twice."""


class WorkerProcess(ABC):
    """Process of one rank, as the executor that placed it sees it.

    Attributes:
        node: Name of the machine where it runs.
        pid: Process id there; None if it is not known yet.
    """

    node: str
    pid: int | None = None

    @abstractmethod
    def fileno(self) -> int | None:
        """Return a file descriptor that is readable once the process has ended.

        Returns:
            None if there is none; then the end is noticed when its connection ends.
        """

    @abstractmethod
    def kill(self) -> None:
        """Kill the process and all its descendants. May be called more than once."""

    @abstractmethod
    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then kill it, and release what was started for it.

        Args:
            timeout_s: Time for the process to exit by itself.

        Returns:
            Description of its end: "was killed by SIGKILL". The same on a second call.
        """

    def state(self, stack_fd: int | None) -> str:
        """Describe what the process is doing while it does not answer, for people.

        Args:
            stack_fd: File descriptor of the process to which it writes its stack on a signal;
                None if it has not joined.
        """
        del stack_fd
        return f"its state cannot be read from here; look at the log on {self.node}"


class JoinPoint(ABC):
    """Port of the engine at which the ranks on other machines join.

    Attributes:
        address: Host and port, such as "10.0.0.1:4711".
        key: Secret of this launch as text, without which nothing can join; it goes to
            `quire worker` by standard input or a file that only its user may read.
        has_key_file: Whether the user has named a file of the key, from which workers that others
            start can read it.
    """

    address: str
    key: str
    has_key_file: bool

    @abstractmethod
    def wait(self, check: Callable[[], None]) -> Sequence[WorkerProcess]:
        """Wait until every rank has joined, each started by `quire worker` on its machine.

        Args:
            check: Function that is called about twice a second, and raises if ranks cannot come.

        Returns:
            The process of each rank, in order.

        Raises:
            CapacityError: A machine has too few devices for its ranks.
            SettingsError: Machines cannot reach each other, or run another version of quire.
            EngineDeadError: Ranks did not come in time.
        """


class HelperProcess(ABC):
    """A process on this machine that an executor needs beside the workers.

    It runs `main(channel)` of a module, where `channel` is a socket to this process that keeps the
    bounds of frames; an empty frame is the end of the other side. It is killed, with all that it
    has started, when the engine's process dies. `send`, `receive` and `end` may be called by
    different threads.
    """

    @abstractmethod
    def fileno(self) -> int:
        """Return a file descriptor that is readable once a frame has arrived, or it has ended."""

    @abstractmethod
    def send(self, frame: bytes) -> None:
        """Send a frame of at most 64 KiB.

        Raises:
            EngineDeadError: The process has ended; the message says how.
        """

    @abstractmethod
    def receive(self) -> bytes:
        """Wait for a frame, and return it.

        Raises:
            EngineDeadError: The process has ended; the message says how.
        """

    @abstractmethod
    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then kill it; a no-op on a second call.

        Returns:
            Description of its end: "was killed by SIGKILL".
        """


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLaunch:
    """Means to start the workers; an executor uses one of them for every rank of the grid.

    Attributes:
        grid: Workers to place.
        make: Function that builds the only worker of a grid of one in this process.
        spawn: Function that starts the process of a rank as a child of this one.
        listen: Function that opens the port for ranks on other machines. Its argument is the
            address to listen on if `worker_address` is not set; without either it raises a
            `SettingsError`.
        start_helper: Function that starts a process beside the workers; its argument is the name
            of a module, whose `main` runs there.
        needs_gpus: Whether each rank needs a GPU.
        num_threads: CPU threads of each rank; None: as many as its machine has for it.
        start_timeout_s: Time for the workers to start.
    """

    grid: WorkerGrid
    make: Callable[[], Worker]
    spawn: Callable[[int], WorkerProcess]
    listen: Callable[[str | None], JoinPoint]
    start_helper: Callable[[str], HelperProcess]
    needs_gpus: bool = False
    num_threads: int | None = None
    start_timeout_s: float = 600.0


class Executor(ABC):
    """Places the workers of a grid."""

    @abstractmethod
    def place(self, launch: WorkerLaunch) -> Worker | Sequence[WorkerProcess]:
        """Start the workers.

        Returns:
            The worker, if it runs in this process; else the process of each rank, in order.

        Raises:
            RefusedError: The executor cannot place such a grid.
            CapacityError: There are too few devices.
        """
