"""Messages between the engine and all ranks, within deadlines; one failed rank ends all of them.

Ranks find each other through keys: a rank publishes a value, and others ask for it. Once a rank
has died, failed or missed a deadline, every method raises the same `EngineDeadError`.
"""

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from quire.errors import CollectiveError, EngineDeadError, QuireError
from quire.launch.workers.nodes.node_agents import NodeAgents
from quire.launch.workers.ranks.rank_link import RankLink
from quire.launch.workers.worker_wire import (
    GetKey,
    Joined,
    KeyValue,
    SetKey,
    ToWorker,
    WorkerFailed,
    WorkerRefused,
)
from quire.process.hub import Hub, Peer
from quire.process.interrupts import Interrupts

FLUSH_S = 0.1  # time for the last messages of a dead process to arrive
EXIT_GRACE_S = 1.0  # time for a failed process to exit by itself
DEATH_GRACE_S = 0.5  # time in which the death of a rank explains why others wait for it
LOOK_INTERVAL_S = 0.5  # between two looks for deaths while messages keep arriving
LINGER_S = 1.0  # time for agents to read why all ranks end
STOP_TIMEOUT_S = 10.0  # time for all ranks to exit after `Stop`

T = TypeVar("T")


class RankLinks:
    """Connections to all ranks.

    It is used by one thread.

    Args:
        hub: Hub to which the ranks connect.
        links: The ranks, in order.
        agents: Agents of the machines, if the ranks are children of agents.

    Attributes:
        activity: What the ranks were last asked to do, for error messages.
    """

    def __init__(
        self, hub: Hub, links: Sequence[RankLink], agents: NodeAgents | None = None
    ) -> None:
        self._hub = hub
        self._agents = agents
        self.links = list(links)
        self.activity = "the start"
        self._by_peer: dict[Peer, RankLink] = {}
        self._by_fd: dict[int, RankLink] = {}
        self._keys: dict[str, bytes] = {}
        self._askers: defaultdict[str, list[Peer]] = defaultdict(list)
        self._lost: set[Peer] = set()  # peers whose connection has ended
        self._ended: set[int] = set()  # ranks with an agent whose end the executor has seen
        self._next_look_s = 0.0
        self._death: EngineDeadError | None = None
        self._owner_pid = os.getpid()
        self._interrupts = Interrupts()
        for link in links:
            if (fd := link.process.fileno()) is not None:
                self._by_fd[fd] = link
                hub.watch(fd)

    @property
    def have_joined(self) -> bool:
        """Whether all ranks have joined, so that messages can be sent to them."""
        return all(link.peer is not None for link in self.links)

    def send(self, message: ToWorker) -> None:
        """Send a message to all ranks without blocking.

        Raises:
            EngineDeadError: A rank is dead, or an agent is lost.
        """
        self._check_alive()
        self._check_agents()
        self._send([_peer_of(link) for link in self.links], message)

    def gather(self, kind: type[T], timeout_s: float) -> list[T]:
        """Wait for a message of one kind from each rank, and return them by rank.

        Args:
            kind: Type of the messages; any other is an error.
            timeout_s: Time for the slowest rank.

        Raises:
            EngineDeadError: A rank died, failed, or was too late.
        """
        found: dict[int, T] = {}
        deadline = time.monotonic() + timeout_s
        while len(found) < len(self.links):
            received = self.receive(deadline)
            if received is None:
                self.end_late([k for k in self.links if k.rank not in found], timeout_s)
            link, message = received
            if not isinstance(message, kind) or link.rank in found:
                self.end(f"{link} sent {message!r} unexpectedly")
            found[link.rank] = message
        return [found[link.rank] for link in self.links]

    def receive(self, deadline: float) -> tuple[RankLink, Any] | None:
        """Return the next message of a rank; None at the deadline, by `time.monotonic()`.

        Raises:
            EngineDeadError: A rank died or failed.
            QuireError: A rank refused to start; all are ended.
        """
        self._check_alive()
        while True:
            if (received := self._next()) is not None:
                self._look_for_deaths()
                return received
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            if dead := self._dead(left_s):
                if (received := self._next(FLUSH_S)) is not None:
                    return received
                self._raise_deaths(dead)

    def check(self) -> None:
        """Check that all ranks are alive; never blocks.

        Raises:
            EngineDeadError: A rank is dead or has failed.
        """
        self._check_alive()
        if (received := self._next()) is not None:
            self.end(f"{received[0]} sent {received[1]!r} unexpectedly")
        if dead := self._dead(0.0):
            self._raise_deaths(dead)

    def end_late(self, late: Sequence[RankLink], timeout_s: float) -> NoReturn:
        """End all ranks because some were too late; the error says what those are doing.

        Raises:
            EngineDeadError: Always.
        """
        states = [(link, link.state()) for link in late]
        late_ones = "; ".join(f"{link} has not answered, {_brief(state)}" for link, state in states)
        self.end(
            f"{self.activity} did not complete within {timeout_s:g} s: {late_ones}{_stacks(states)}"
        )

    def end(self, reason: str, patience_s: float = 0.0) -> NoReturn:
        """End all ranks, and raise the reason.

        Raises:
            EngineDeadError: Always.
        """
        self.close(EngineDeadError(reason), patience_s)
        raise EngineDeadError(reason)

    def close(self, death: EngineDeadError, patience_s: float = 0.0) -> None:
        """End the processes of all ranks; a no-op on a second call, and in a fork.

        Args:
            death: Error for later calls.
            patience_s: Time for the processes to exit by themselves, before they are killed.
        """
        if self._death is not None or os.getpid() != self._owner_pid:
            return
        self._death = death
        deadline = time.monotonic() + patience_s
        if not patience_s:
            if self._agents is not None:
                self._agents.announce(str(death))
            for link in self.links:
                link.process.kill()
        self._hub.drain(patience_s)
        for link in self.links:
            link.process.end(max(0.0, deadline - time.monotonic()))
        self._hub.close(0.0 if self._agents is None else LINGER_S)

    def _look_for_deaths(self) -> None:
        """Notice deaths at intervals: a rank whose executor has given it up may still send results.

        Raises:
            EngineDeadError: A rank is dead.
        """
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_INTERVAL_S
        if dead := self._dead(0.0):
            self._raise_deaths(dead)

    def _next(self, timeout_s: float = 0.0) -> tuple[RankLink, Any] | None:
        """Return the next message that is not for this object, or None."""
        while (received := self._take(timeout_s)) is not None:
            peer, message = received
            match message:
                case _ if self._agents is not None and self._agents.is_agent(peer):
                    self._handle_agent(self._agents, peer, message)
                case Joined():
                    return self._joined(peer, message), message
                case WorkerRefused():
                    self._refused(message)
                case _ if self._agents is not None and self._agents.take_stranger(peer, message):
                    pass
                case _ if peer not in self._by_peer:
                    self.end(f"a process that has not joined sent {message!r}")
                case WorkerFailed():
                    self._failed(self._by_peer[peer], message)
                case SetKey():
                    self._set_key(message)
                case GetKey():
                    self._get_key(peer, message)
                case _:
                    return self._by_peer[peer], message
        return None

    def _take(self, timeout_s: float) -> tuple[Peer, Any] | None:
        try:
            return self._hub.take(timeout_s)
        except EngineDeadError as error:
            self.end(str(error))

    def _joined(self, peer: Peer, message: Joined) -> RankLink:
        if not 0 <= message.rank < len(self.links) or self.links[message.rank].peer is not None:
            self.end(
                f"process {message.pid} on {message.node} joined as rank {message.rank}, which is "
                f"taken or not among the {len(self.links)} ranks"
            )
        link = self.links[message.rank]
        link.peer, link.joined = peer, message
        self._by_peer[peer] = link
        return link

    def _refused(self, message: WorkerRefused) -> NoReturn:
        """End all ranks because one cannot start, and raise its error with the name of the rank."""
        is_known = 0 <= message.rank < len(self.links)
        name = self.links[message.rank] if is_known else f"worker {message.rank}"
        error = message.error.error(prefix=f"{name}: ")
        self.close(EngineDeadError(f"the workers did not start: {error}"), EXIT_GRACE_S)
        raise error

    def _failed(self, link: RankLink, message: WorkerFailed) -> NoReturn:
        """End all ranks because one failed; if it waited in vain for a dead one, name that one."""
        error: QuireError = message.error.error()
        if isinstance(error, CollectiveError) and (dead := self._deaths_within(DEATH_GRACE_S)):
            self._raise_deaths(dead)
        others = [other for other in self.links if other is not link]
        states = []
        if isinstance(error, CollectiveError):
            states = [(other, other.state()) for other in others]
        briefs = "".join(f"; {other}: {_brief(state)}" for other, state in states)
        death = EngineDeadError(f"{link} failed: {error}{briefs}{_stacks(states)}")
        death.__cause__ = error.__cause__
        self.close(death, 0.0 if states else EXIT_GRACE_S)
        raise death

    def _send(self, peers: Sequence[Peer], message: ToWorker) -> None:
        try:
            with self._interrupts:  # or only some ranks would compute a step
                self._hub.send(peers, message)
        except EngineDeadError as error:
            if dead := self._deaths_within(DEATH_GRACE_S):
                self._raise_deaths(dead)
            self.end(str(error))

    def _set_key(self, message: SetKey) -> None:
        self._keys[message.key] = message.value
        if askers := self._askers.pop(message.key, []):
            self._send(askers, KeyValue(message.key, message.value))

    def _get_key(self, peer: Peer, message: GetKey) -> None:
        if message.key in self._keys:
            self._send([peer], KeyValue(message.key, self._keys[message.key]))
        else:
            self._askers[message.key].append(peer)

    def _handle_agent(self, agents: NodeAgents, peer: Peer, message: Any) -> None:
        try:
            agents.handle(peer, message)
        except EngineDeadError as error:
            self.end(str(error))

    def _dead(self, timeout_s: float) -> list[RankLink]:
        """Return the ranks that have ended; if there are none, wait for a message or an end."""
        if self._agents is None:
            return [self._by_fd[fd] for fd in self._hub.wait(timeout_s)]
        if not (dead := self._dead_by_agents(self._agents)):
            self._ended.update(self._by_fd[fd].rank for fd in self._hub.wait(timeout_s))
            dead = self._dead_by_agents(self._agents)
        return dead

    def _deaths_within(self, timeout_s: float) -> list[RankLink]:
        """Wait for the end of a rank, which explains why others fail; their messages are dropped.

        Raises:
            EngineDeadError: A rank failed for a reason of its own.
        """
        deadline = time.monotonic() + timeout_s
        while not (dead := self._dead(max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return []
            if (received := self._take(0.0)) is None:
                continue
            peer, message = received
            if self._agents is not None and self._agents.is_agent(peer):
                self._handle_agent(self._agents, peer, message)
            elif peer in self._by_peer and _failed_by_itself(message):
                self._failed(self._by_peer[peer], message)
        return dead

    def _check_agents(self) -> None:
        """Check that no agent is lost: its ranks may answer on, but it cannot end them.

        Raises:
            EngineDeadError: One is.
        """
        if self._agents is None:
            return
        dead = self._dead_by_agents(self._agents)
        if any(map(self._agents.is_agent, self._lost)):
            self._raise_deaths(dead)

    def _dead_by_agents(self, agents: NodeAgents) -> list[RankLink]:
        """Return the ranks whose end is reported, or whose connection or agent is lost."""
        self._lost.update(self._hub.lost())
        ranks = set(agents.ended) | self._ended
        for peer in self._lost:
            ranks.update(agents.ranks_of(peer))
            if peer in self._by_peer:
                ranks.add(self._by_peer[peer].rank)
        return [self.links[rank] for rank in sorted(ranks)]

    def _raise_deaths(self, dead: Sequence[RankLink]) -> NoReturn:
        """End all ranks because some have died; what they sent last is the reason, if they did."""
        while self._next(FLUSH_S) is not None:
            pass  # results that came before the end; a `WorkerFailed` or `WorkerRefused` is raised
        ends = [(link, self._end_of(link)) for link in dead]
        what = "; ".join(f"{link} {_brief(end)}" for link, end in ends)
        self.end(f"{what}, during or after {self.activity}{_stacks(ends)}")

    def _end_of(self, link: RankLink) -> str:
        """Describe the end of a rank; one whose connection is silent may still run."""
        if self._agents is None:
            return link.process.end(EXIT_GRACE_S)
        self._agents.record_lost(self._lost)
        how = self._agents.wait_end(link.rank, EXIT_GRACE_S)
        if how is None and link.rank not in self._ended:
            return f"has lost its connection to the engine; {link.state()}"
        return link.process.end(0.0)

    def _check_alive(self) -> None:
        if os.getpid() != self._owner_pid:
            raise EngineDeadError(
                f"the workers belong to process {self._owner_pid}, and cannot be used in its fork "
                f"{os.getpid()}; start another engine here"
            )
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death


def _failed_by_itself(message: Any) -> bool:
    """Return whether a rank failed, and not because it waited for another one."""
    is_failure = isinstance(message, WorkerFailed)
    return is_failure and not isinstance(message.error.error(), CollectiveError)


def _brief(state: str) -> str:
    """Return the state of a process, where it ends with a stack without that: "its stack is"."""
    first_line, has_stack, _ = state.partition("\n")
    return f"{first_line} in the log" if has_stack else first_line


def _stacks(states: Sequence[tuple[RankLink, str]]) -> str:
    """Return the states that have a stack, on lines of their own."""
    return "".join(f"\n{link}: {state}" for link, state in states if "\n" in state)


def _peer_of(link: RankLink) -> Peer:
    if link.peer is None:
        raise RuntimeError(f"{link} has not joined")
    return link.peer
