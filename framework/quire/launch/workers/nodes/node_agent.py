"""The agent of a machine: it joins an engine, starts its ranks, watches them, and reports.

    engine <-- hub -- agent -- pidfd --> rank     (the ranks are children of the agent)
         ^------------ hub ------------- rank

If the connection to the engine ends, the agent kills its ranks. If the agent dies, their watchdogs
kill them. It computes nothing and loads no torch.
"""

import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import quire
from quire.config import Settings
from quire.errors import EngineDeadError, QuireError
from quire.launch.workers.nodes.agent_wire import (
    AgentFailed,
    AgentJoined,
    AgentRefused,
    DescribeRank,
    EngineEnded,
    KillRank,
    Probe,
    Probed,
    RankEnded,
    RankStarted,
    RankState,
    StartRanks,
    ToAgent,
)
from quire.launch.workers.nodes.engine_connection import EngineConnection, connect
from quire.launch.workers.nodes.own_ranks import ranks_text
from quire.launch.workers.nodes.reachability import PROBE_TIMEOUT_S, ProbeListener, probe
from quire.launch.workers.placing.local_process import LocalProcess
from quire.launch.workers.worker_wire import WorkerConfig
from quire.machine.node_identity import node_id
from quire.machine.nvml import visible_device_ids
from quire.process.error_message import ErrorMessage
from quire.process.hub import HubChannel
from quire.process.ipc import encode

LINGER_S = 2.0  # time for the engine to read the last message

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlace:
    """Place of an agent in a launch.

    Attributes:
        engine: Address at which the engine listens, `tcp://HOST:PORT`.
        key_file: File of the launch's key; `-` is standard input.
        ranks: Ranks that the agent starts.
        host_ip: IP address at which the ranks listen for others; None: that of the interface
            through which the engine is reached.
        timeout_s: Time for the key to be written, and for the engine to be reachable.
    """

    engine: str
    key_file: str
    ranks: range
    host_ip: str | None
    timeout_s: float


def run_agent(place: AgentPlace) -> int:
    """Join an engine, and run the ranks until they have ended.

    Returns:
        Exit status: 0 if every rank exited by itself as the engine told it to.

    Raises:
        QuireError: The engine cannot be reached, refuses the agent, or is lost.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    logger.info("joining the engine at %s with %s", place.engine, ranks_text(place.ranks))
    connection = connect(ToAgent, place.engine, place.key_file, place.timeout_s)
    channel = connection.channel
    try:
        with _reported(channel), ProbeListener(place.host_ip or connection.own_ip) as listener:
            channel.send(_joined(place, listener))
            logger.info("joined the engine; waiting for the other ranks")
            with NodeAgent(connection, place, listener) as agent:
                return agent.serve()
    finally:
        channel.close(LINGER_S)


@contextmanager
def _reported(channel: HubChannel) -> Iterator[None]:
    """Send the error that ends the agent to the engine, if it is still there."""
    try:
        yield
    except _RefusedError as error:
        raise error.reason from None
    except (KeyboardInterrupt, QuireError) as error:
        cause = error if isinstance(error, QuireError) else EngineDeadError("it was interrupted")
        with suppress(EngineDeadError):
            channel.send(AgentFailed(ErrorMessage.of(cause)))
        raise


class _RefusedError(Exception):
    """The engine refuses this agent, and needs no answer."""

    def __init__(self, reason: QuireError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class NodeAgent:
    """Starts ranks on this machine, and reports their ends; its `with` block kills them.

    Args:
        connection: Connection to the engine.
        place: Place of the agent.
        listener: Listener for probes, closed before the ranks are started.
    """

    def __init__(
        self, connection: EngineConnection, place: AgentPlace, listener: ProbeListener
    ) -> None:
        self._channel = connection.channel
        self._key = connection.key
        self._listener = listener
        self._place = place
        self._processes: dict[int, LocalProcess] = {}
        self._by_fd: dict[int, int] = {}  # the rank whose end makes a file descriptor readable
        self._ends: dict[int, str] = {}

    def __enter__(self) -> "NodeAgent":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.end(0.0)

    def serve(self) -> int:
        """Serve the engine until all ranks have ended and their ends are reported.

        Raises:
            QuireError: The engine is lost, or refuses this agent.
        """
        while len(self._ends) < len(self._place.ranks):
            ended = self._channel.wait()
            while (message := self._channel.receive(0.0)) is not None:
                self._handle(message)
            self._report(ended)
        return 0 if all(each.has_succeeded for each in self._processes.values()) else 1

    def _handle(self, message: Any) -> None:
        match message:
            case Probe():
                self._channel.send(Probed(probe(message.targets, PROBE_TIMEOUT_S)))
            case StartRanks():
                self._start(message.settings, message.log_level)
            case DescribeRank():
                text = self._processes[message.rank].state(message.stack_fd)
                self._channel.send(RankState(message.rank, text))
            case KillRank():
                self._processes[message.rank].kill()
            case AgentRefused():
                raise _RefusedError(message.error.error())
            case EngineEnded():
                logger.error("the engine ends all ranks: %s", message.reason)
            case _:
                raise EngineDeadError(f"the engine sent {message!r} unexpectedly")

    def _start(self, settings: Settings, log_level: int) -> None:
        self._listener.close()
        for rank in self._place.ranks:
            config = WorkerConfig(
                settings=settings,
                address=self._place.engine,
                key=self._key.text,
                rank=rank,
                log_level=log_level,
            )
            try:
                process = LocalProcess([str(os.getpid())], encode(config))
            except OSError as error:
                raise EngineDeadError(f"rank {rank} cannot be started: {error}") from error
            self._processes[rank] = process
            logger.info("rank %d is process %d", rank, process.pid)
            if (fd := process.fileno()) is not None:
                self._by_fd[fd] = rank
                self._channel.watch(fd)
            self._channel.send(RankStarted(rank, process.pid))

    def _report(self, fds: Sequence[int]) -> None:
        for fd in fds:
            self._channel.unwatch(fd)
            rank = self._by_fd.pop(fd)
            self._ends[rank] = self._processes[rank].end(0.0)
            level = logging.INFO if self._processes[rank].has_succeeded else logging.ERROR
            logger.log(level, "rank %d %s", rank, self._ends[rank])
            self._channel.send(RankEnded(rank, self._ends[rank]))


def _joined(place: AgentPlace, listener: ProbeListener) -> AgentJoined:
    return AgentJoined(
        version=quire.__version__,
        node=socket.gethostname(),
        node_id=node_id(),
        pid=os.getpid(),
        first_rank=place.ranks[0],
        num_ranks=len(place.ranks),
        target=listener.target,
        devices=visible_device_ids(),
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
