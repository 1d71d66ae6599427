"""Agents of all machines of a launch, as the engine sees them."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

from quire.errors import EngineDeadError, QuireError, SettingsError
from quire.launch.workers.nodes.agent_wire import (
    AgentFailed,
    AgentJoined,
    AgentRefused,
    DescribeRank,
    EngineEnded,
    KillRank,
    RankEnded,
    RankStarted,
    RankState,
    ToAgent,
)
from quire.process.error_message import ErrorMessage
from quire.process.hub import Hub, Peer

ENDED_POLL_S = 0.01
STATE_TIMEOUT_S = 3.0  # time for an agent to say what a rank is doing
LOST = (
    "is lost: the connection to its agent has ended, so its machine, the network or the agent is "
    "gone"
)


logger = logging.getLogger(__name__)


class NodeAgents:
    """Agents that are connected to a hub, and what they have reported.

    It is used by one thread.

    Args:
        hub: Hub to which they connect.

    Attributes:
        pids: Process id of each rank that is started.
    """

    def __init__(self, hub: Hub) -> None:
        self.pids: dict[int, int] = {}
        self._hub = hub
        self._by_peer: dict[Peer, AgentJoined] = {}
        self._ends: dict[int, str] = {}
        self._states: dict[int, str] = {}

    @property
    def joined(self) -> Sequence[AgentJoined]:
        """The agents that have joined, in the order of their ranks."""
        return sorted(self._by_peer.values(), key=lambda agent: agent.first_rank)

    @property
    def ended(self) -> Set[int]:
        """Ranks whose end was reported, or whose agent is lost."""
        return self._ends.keys()

    def of_rank(self, rank: int) -> AgentJoined:
        """Return the agent of a rank."""
        return next(agent for agent in self._by_peer.values() if rank in agent.ranks)

    def is_agent(self, peer: Peer) -> bool:
        """Return whether a peer is an agent that was added."""
        return peer in self._by_peer

    def named(self, peers: Iterable[Peer]) -> str:
        """Return the names of agents for people."""
        return "; ".join(str(self._by_peer[peer]) for peer in peers)

    def add(self, peer: Peer, agent: AgentJoined) -> None:
        """Add an agent that has joined."""
        self._by_peer[peer] = agent

    def remove(self, peer: Peer) -> AgentJoined | None:
        """Remove an agent before its ranks are started; None if the peer is none."""
        return self._by_peer.pop(peer, None)

    def take_stranger(self, peer: Peer, message: Any) -> bool:
        """Answer a message of an agent that came too late, or was refused before.

        Returns:
            False if it is no message of an agent.
        """
        match message:
            case AgentJoined():
                joined = "; ".join(map(str, self.joined))
                error = SettingsError(f"all ranks have joined already: {joined}")
                logger.warning("%s was refused: all ranks have joined already", message)
                self.refuse(peer, error)
            case AgentFailed():
                pass  # it was refused
            case _:
                return False
        return True

    def refuse(self, peer: Peer, error: QuireError) -> None:
        """Make an agent end with an error."""
        self._try_send(peer, AgentRefused(ErrorMessage.of(error)))

    def refuse_all(self, error: QuireError) -> None:
        """Make all agents end with an error."""
        for peer in self._by_peer:
            self.refuse(peer, error)

    def send_all(self, message: ToAgent) -> None:
        """Send a message to all agents.

        Raises:
            EngineDeadError: One of them has disconnected; the error names it.
        """
        for peer, agent in self._by_peer.items():
            try:
                self._hub.send([peer], message)
            except EngineDeadError as error:
                raise EngineDeadError(f"{agent} has left before its ranks were started") from error

    def announce(self, reason: str) -> None:
        """Tell all agents why the engine is about to end their ranks."""
        for peer in self._by_peer:
            self._try_send(peer, EngineEnded(reason))

    @property
    def peers(self) -> Sequence[Peer]:
        """Agents as peers of the hub, in the order of their ranks."""
        return sorted(self._by_peer, key=lambda peer: self._by_peer[peer].first_rank)

    def handle(self, peer: Peer, message: Any) -> None:
        """Record what an agent reports.

        Raises:
            EngineDeadError: The message is not one that an agent sends while its ranks run, or is
                about a rank of another agent.
        """
        agent = self._by_peer[peer]
        match message:
            case AgentFailed():
                self._record_loss(agent, f"ended with its agent, because {message.error.message}")
            case RankStarted() if message.rank in agent.ranks:
                self.pids[message.rank] = message.pid
            case RankEnded() if message.rank in agent.ranks:
                self._ends.setdefault(message.rank, message.how)
            case RankState() if message.rank in agent.ranks:
                self._states[message.rank] = message.text
            case _:
                raise EngineDeadError(f"the agent of {agent} sent {message!r} unexpectedly")

    def ranks_of(self, peer: Peer) -> range:
        """Return the ranks of a peer, which are none if it is no agent."""
        return self._by_peer[peer].ranks if peer in self._by_peer else range(0)

    def record_lost(self, peers: Iterable[Peer]) -> None:
        """Record that the connections to some peers have ended; call it after their messages."""
        for peer in peers:
            if peer in self._by_peer:
                self._record_loss(self._by_peer[peer], LOST)

    def kill(self, rank: int) -> None:
        """Make the agent of a rank kill it."""
        if rank not in self._ends:
            self._try_send(self._peer_of(rank), KillRank(rank))

    def wait_end(self, rank: int, timeout_s: float) -> str | None:
        """Return how a rank has ended; None if it has not within the timeout."""
        self._wait(lambda: rank in self._ends, timeout_s)
        return self._ends.get(rank)

    def state(self, rank: int, stack_fd: int | None) -> str:
        """Return what a rank is doing, as its agent says."""
        self._states.pop(rank, None)
        self._try_send(self._peer_of(rank), DescribeRank(rank, stack_fd))
        self._wait(lambda: rank in self._states or rank in self._ends, STATE_TIMEOUT_S)
        if rank in self._ends:
            return f"it {self._ends[rank]}"
        return self._states.get(rank, f"the agent of {self.of_rank(rank)} does not answer either")

    def _peer_of(self, rank: int) -> Peer:
        return next(peer for peer, agent in self._by_peer.items() if rank in agent.ranks)

    def _record_loss(self, agent: AgentJoined, how: str) -> None:
        for rank in agent.ranks:
            self._ends.setdefault(rank, how)

    def _try_send(self, peer: Peer, message: ToAgent) -> None:
        """Send a message; an agent that has disconnected is recorded as lost."""
        try:
            self._hub.send([peer], message)
        except EngineDeadError:
            self.record_lost([peer])

    def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Take messages until something is reported, or until the timeout.

        The messages of ranks are dropped: the engine is about to end them all.
        """
        deadline = time.monotonic() + timeout_s
        while not is_done():
            if self._hub.wait(max(0.0, deadline - time.monotonic())):
                time.sleep(ENDED_POLL_S)  # a process that the executor watches has ended
            lost = self._hub.lost()
            while (received := self._hub.take()) is not None:  # also what the lost ones sent last
                if self.is_agent(received[0]):
                    self.handle(*received)
            self.record_lost(lost)
            if time.monotonic() >= deadline:
                return
