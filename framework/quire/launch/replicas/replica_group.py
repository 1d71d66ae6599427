"""The processes of all replicas, driven by one thread: it waits for all of them at once.

Nothing here waits for one replica alone: starts, steps, results of calls and deaths are events that
`poll` returns. Requests are the business of `ReplicatedCore`.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import EngineDeadError, QuireError
from quire.launch.engine_process.remote_core import RemoteCore
from quire.launch.replicas.replica import Replica
from quire.messages import AdapterRef, Control, EngineOutputs
from quire.process.local.channel_set import ChannelSet
from quire.process.wake_event import WakeEvent


@dataclass(frozen=True, slots=True)
class CameUp:
    """A replica takes requests from now on."""

    replica: Replica


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step of a replica is complete; `incarnation` is that of the replica then."""

    replica: Replica
    incarnation: int
    outputs: EngineOutputs


@dataclass(frozen=True, slots=True)
class Died:
    """A replica died, or could not start; `pid` is that of its process."""

    replica: Replica
    pid: int | None
    was_up: bool
    error: BaseException


@dataclass(slots=True, eq=False)
class GroupCall:
    """A command in all replicas that were up: those that have not replied, results and errors."""

    open: dict[Replica, tuple[RemoteCore, int]] = field(default_factory=dict)
    results: dict[Replica, Any] = field(default_factory=dict)
    refusals: list[QuireError] = field(default_factory=list)

    def advance(self) -> bool:
        """Take the replies that have arrived; return whether each replica replied or died."""
        for replica, (core, call_id) in list(self.open.items()):
            if core is not replica.core:  # it died
                del self.open[replica]
            elif core.has_result(call_id):
                del self.open[replica]
                self._take_result(replica, core, call_id)
        return not self.open

    def _take_result(self, replica: Replica, core: RemoteCore, call_id: int) -> None:
        try:
            self.results[replica] = core.result(call_id)
        except QuireError as error:
            self.refusals.append(error)


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """All replicas that had a call have replied or died."""

    call: GroupCall


ReplicaEvent = CameUp | CompletedStep | Died | CompletedCall


class ReplicaGroup:
    """All replicas of an engine.

    It is used by one thread, except `wake` and `kill`, which any thread may call.

    Args:
        replicas: Replicas, not launched yet.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self, replicas: Sequence[Replica], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.replicas = replicas
        self.adapters: dict[str, AdapterRef] = {}  # that a replica loads before it takes requests
        self._clock = clock
        self._wake = WakeEvent()
        self._channels = ChannelSet([self._wake.fileno()])
        self._calls: list[GroupCall] = []
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether nothing is started again, because the group is ended."""
        return self._is_closing

    @property
    def is_dead(self) -> bool:
        """Whether no replica runs, and none is started again."""
        return all(replica.is_down for replica in self.replicas)

    def start(self) -> None:
        """Launch all replicas, and wait until all are up.

        Raises:
            QuireError: One of them cannot start.
        """
        for replica in self.replicas:
            replica.launch(self._clock())
        while starting := [replica for replica in self.replicas if replica.core is None]:
            if not sum([replica.poll_start((), self._clock()) for replica in starting]):
                self.wait()

    def poll(self) -> list[ReplicaEvent]:
        """Take what has arrived, and launch what is due; never waits."""
        events = [event for replica in self.replicas if (event := self._poll(replica)) is not None]
        return [*events, *self._flush(), *self._take_completed()]

    def ask_for_stats(self) -> list[Died]:
        """Ask the replicas that answer for their statistics; return those that turn out dead."""
        now_s, deaths = self._clock(), []
        for replica in self.replicas:
            try:
                if replica.core is not None and not replica.is_silent(now_s):
                    replica.ask_for_stats(now_s)
            except EngineDeadError as death:
                deaths.append(self._bury(replica, death))
        return deaths

    def begin(self, command: Control) -> tuple[GroupCall, list[Died]]:
        """Send a command to all replicas that are up; `poll` says when the call is complete.

        Returns:
            The call, and the replicas that turn out to be dead.
        """
        call, deaths = GroupCall(), []
        for replica in self.replicas:
            if (core := replica.core) is not None:
                try:
                    call.open[replica] = core, replica.call(command, self._clock())
                except EngineDeadError as death:
                    deaths.append(self._bury(replica, death))
        self._calls.append(call)
        return call, deaths

    def prepare(self, adapter: AdapterRef) -> list[Died]:
        """Load an adapter in every replica that starts, before it takes requests."""
        self.adapters[adapter.name] = adapter
        deaths = []
        for replica in self.replicas:
            try:
                replica.prepare(adapter)
            except EngineDeadError as death:
                deaths.append(self._bury(replica, death))
        return deaths

    def wait(self, limit_s: float = math.inf) -> bool:
        """Wait until something has arrived or is due; return whether `wake` was called.

        Args:
            limit_s: Seconds to wait at most.
        """
        channels = (replica.channel for replica in self.replicas)
        self._channels.replace(channel for channel in channels if channel is not None)
        seconds = min(limit_s, self._seconds_to_deadline())
        was_woken = bool(self._channels.wait(None if seconds == math.inf else seconds))
        if was_woken:
            self._wake.clear()
        return was_woken

    def wake(self) -> None:
        """Make a `wait` return; from any thread."""
        self._wake.set()

    def kill(self) -> None:
        """Kill all processes; from any thread."""
        self._is_closing = True
        if self.is_owner:
            for replica in self.replicas:
                replica.kill()

    def shutdown(self) -> None:
        """End all processes after their running steps, or after a timeout. May be called twice."""
        self._is_closing = True
        if not self.is_owner:
            return
        for replica in self.replicas:
            replica.begin_shutdown()
        for replica in self.replicas:
            replica.shutdown()
        self._wake.close()

    @property
    def is_owner(self) -> bool:
        """Whether this process started the replicas, and is not a fork of it."""
        return os.getpid() == self._wake.owner_pid

    def check_owner(self) -> None:
        """Check that this process started the replicas.

        Raises:
            EngineDeadError: This process is a fork of it; both would read the same messages.
        """
        if not self.is_owner:
            raise EngineDeadError(
                f"the engine belongs to process {self._wake.owner_pid}, and cannot be used in its "
                f"fork {os.getpid()}; start another engine here"
            )

    def _poll(self, replica: Replica) -> ReplicaEvent | None:
        """Advance one replica."""
        try:
            return self._advance(replica)
        except (QuireError, OSError) as error:  # OSError: its process cannot be launched
            return self._bury(replica, error)

    def _advance(self, replica: Replica) -> ReplicaEvent | None:
        """Advance one replica.

        Raises:
            QuireError: It died, or cannot start.
            OSError: Its process cannot be launched.
        """
        if replica.core is not None:
            outputs = replica.poll_step(self._clock())
            if outputs is None:
                return None
            return CompletedStep(replica, replica.incarnation, outputs)
        if replica.next_start_s is not None:
            if self._clock() >= replica.next_start_s:
                replica.launch(self._clock())
            return None
        if not replica.is_down and replica.poll_start(self.adapters.values(), self._clock()):
            return CameUp(replica)
        return None

    def _flush(self) -> list[Died]:
        """Send the queued requests; return the replicas that turn out to be dead."""
        deaths = []
        for replica in self.replicas:
            try:
                if replica.core is not None:
                    replica.core.flush()
            except EngineDeadError as death:
                deaths.append(self._bury(replica, death))
        return deaths

    def _bury(self, replica: Replica, error: BaseException) -> Died:
        died = Died(replica, replica.pid, replica.core is not None, error)
        replica.bury(error, self._clock(), may_restart=not self._is_closing)
        return died

    def _take_completed(self) -> list[CompletedCall]:
        """Return the calls that are complete."""
        completed = [call for call in self._calls if call.advance()]
        self._calls = [call for call in self._calls if call.open]
        return [CompletedCall(call) for call in completed]

    def _seconds_to_deadline(self) -> float:
        """Return the seconds until a replica is started again or ended; infinity: none is to be."""
        times = [
            due_s
            for replica in self.replicas
            for due_s in (replica.next_start_s, replica.start_by_s, replica.stall_s)
            if due_s is not None
        ]
        return max(0.0, min(times, default=math.inf) - self._clock())
