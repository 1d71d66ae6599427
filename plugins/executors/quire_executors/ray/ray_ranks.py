"""The ranks as Ray sees them: their places, and the ends of their actors, from Ray's driver."""

import contextlib
import logging
import os
import select
import threading
from collections.abc import Sequence

from quire.errors import CapacityError, EngineDeadError, RefusedError
from quire.interfaces.executor import HelperProcess, JoinPoint, WorkerProcess
from quire_executors.ray.ray_head import is_reachable
from quire_executors.ray.ray_wire import (
    AgentEnded,
    FromDriver,
    Refused,
    Release,
    Reserve,
    Reserved,
    StartAgents,
    decode,
    encode,
)

RELEASE_TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


class RayRanks:
    """The ranks of an engine, placed by Ray's driver.

    Args:
        helper: Process of the driver.
    """

    def __init__(self, helper: HelperProcess) -> None:
        self._helper = helper
        self._nodes: list[str] = []
        self._head = ""
        self._lock = threading.Lock()
        self._ends: dict[int, str] = {}
        self._events: list[int] = []
        self._num_left = 0
        self._watcher = threading.Thread(target=self._watch, name="quire-ray", daemon=True)

    def reserve(self, request: Reserve, timeout_s: float) -> str:
        """Reserve the devices; return the address of this machine, as Ray's nodes reach it.

        Args:
            request: Devices.
            timeout_s: Time for Ray to answer.

        Raises:
            CapacityError: Too few are free.
            RefusedError: Ray cannot be used.
            EngineDeadError: The driver died, or does not answer in time.
        """
        self._helper.send(encode(request))
        message = self._receive(timeout_s)
        match message:
            case None:
                raise EngineDeadError(
                    f"Ray did not answer within {timeout_s:g} s (worker_start_timeout_s); look "
                    "with `ray status` whether its cluster does, and at RAY_ADDRESS"
                )
            case Reserved():
                self._nodes, self._head = message.nodes, message.head
                return message.address
            case Refused(is_capacity=True):
                raise CapacityError(message.message)
            case Refused():
                raise RefusedError(f"executor 'ray' cannot use Ray: {message.message}")
            case _:
                raise EngineDeadError(f"Ray's driver sent {message!r} unexpectedly")

    def start_agents(self, point: JoinPoint) -> None:
        """Start `quire worker` for each rank.

        Raises:
            EngineDeadError: The driver died.
        """
        self._helper.send(encode(StartAgents(point.address, point.key)))

    def check(self) -> None:
        """Check that no rank has ended.

        Raises:
            EngineDeadError: One has, or the driver.
        """
        message = self._receive(0.0)
        if isinstance(message, AgentEnded):
            raise EngineDeadError(
                f"rank {message.rank} on {self._nodes[message.rank]} did not join: {message.how}; "
                f"look at the logs of Ray there"
            )

    def watched(self, processes: Sequence[WorkerProcess]) -> list[WorkerProcess]:
        """Return the processes of the ranks with what Ray knows of their ends."""
        self._num_left = len(processes)
        self._events = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in processes]
        self._watcher.start()
        return [
            RayProcess(self, rank, process, self._events[rank])
            for rank, process in enumerate(processes)
        ]

    def end_of(self, rank: int) -> str | None:
        """Return how a rank's actor or agent has ended, for people; None if it runs."""
        with self._lock:
            return self._ends.get(rank)

    def leave(self, rank: int) -> None:
        """Watch a rank no longer; after the last one, release what Ray has reserved."""
        with self._lock:
            event, self._events[rank] = self._events[rank], -1
            self._num_left -= 1
            os.close(event)
        if not self._num_left:
            self.release()

    def release(self) -> None:
        """End all actors and the driver."""
        with contextlib.suppress(EngineDeadError):  # it is dead already
            self._helper.send(encode(Release()))
        self._helper.end(RELEASE_TIMEOUT_S)
        if self._watcher.ident is not None:
            self._watcher.join()

    def _watch(self) -> None:
        """Record the ends of ranks until the driver ends or Ray's head is gone; in a thread.

        Without its head, Ray ends the driver and all actors, but no `quire worker`. The engine is
        connected to each of them, and notices by itself if one ends.
        """
        try:
            while True:
                message = self._receive(None)
                if isinstance(message, AgentEnded):
                    if not self._has_head():
                        return
                    self._record([message.rank], message.how)
        except EngineDeadError as death:
            if self._num_left and self._has_head():
                self._record(range(len(self._events)), str(death))

    def _has_head(self) -> bool:
        """Whether Ray's head answers; if not, say so, and that the engine should be drained."""
        if is_reachable(self._head):
            return True
        logger.warning(
            "Ray's head %s is gone; it no longer guards these devices, and may give them to others "
            "once it is back: drain this engine, which goes on without Ray, and start it again",
            self._head,
        )
        return False

    def _record(self, ranks: Sequence[int], how: str) -> None:
        with self._lock:
            for rank in ranks:
                self._ends.setdefault(rank, how)
                if self._events[rank] != -1:
                    os.eventfd_write(self._events[rank], 1)

    def _receive(self, timeout_s: float | None) -> FromDriver | None:
        """Return the next message; None if none arrives within the timeout.

        Raises:
            EngineDeadError: The driver died.
        """
        timeout_ms = None if timeout_s is None else int(timeout_s * 1000)
        poller = select.poll()
        poller.register(self._helper.fileno(), select.POLLIN)
        if not poller.poll(timeout_ms):
            return None
        return decode(self._helper.receive(), FromDriver)  # type: ignore[arg-type]


class RayProcess(WorkerProcess):
    """Process of a rank in a Ray cluster.

    Args:
        ranks: All ranks, as Ray sees them.
        rank: The rank.
        process: The process, as its agent sees it.
        event: File descriptor that is readable once Ray has reported its end.
    """

    def __init__(self, ranks: RayRanks, rank: int, process: WorkerProcess, event: int) -> None:
        self.node = process.node
        self._ranks = ranks
        self._rank = rank
        self._process = process
        self._event = event
        self._how: str | None = None

    @property
    def pid(self) -> int | None:  # type: ignore[override]
        """Process id on its machine; None until it is started."""
        return self._process.pid

    def fileno(self) -> int | None:
        """Return the descriptor of the end that Ray reports; None once the process was ended."""
        return self._event if self._how is None else None

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then kill it; the last rank also ends Ray's driver."""
        if self._how is None:
            how, seen = self._process.end(timeout_s), self._ranks.end_of(self._rank)
            self._how = how if seen is None else f"{how}; {seen}"
            self._ranks.leave(self._rank)
        return self._how

    def state(self, stack_fd: int | None) -> str:
        """Describe what the process is doing, as its agent sees it."""
        return self._process.state(stack_fd)
