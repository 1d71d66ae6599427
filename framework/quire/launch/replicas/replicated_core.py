"""Several replicas as one engine core: requests are routed, and each death costs only its own.

One thread waits for all replicas at once. A request of a replica that died is run again on another
one if none of its tokens was sent yet, once; otherwise it fails. The replica is started again by
the same thread, which waits for its start as for any other message.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.engine.results import failed_output, report_of
from quire.errors import EngineDeadError, InvalidRequestError, QuireError, ReplicaDeadError
from quire.launch.engine_process.engine_wire import ReadStats
from quire.launch.replicas.replica import Replica
from quire.launch.replicas.replica_stats import sum_counters, sum_stats
from quire.launch.replicas.router import Router
from quire.messages import (
    AdapterRef,
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    LoadAdapter,
    ResetPrefixCache,
    Started,
)
from quire.process.channel_set import ChannelSet
from quire.process.wake_event import WakeEvent

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenRequest:
    """A request that has not finished.

    Attributes:
        request: The request.
        replica: Index of its replica; None while it waits for one.
        has_output: Whether a part of its completion was returned.
        num_deaths: Number of replicas that died with it.
    """

    request: EngineRequest
    replica: int | None = None
    has_output: bool = False
    num_deaths: int = 0


class ReplicatedCore:
    """Engines in processes, with the methods of `EngineCore`.

    It is used by one thread, except `wake` and `kill`, which any thread may call. In a fork of the
    process that started it, its methods raise `EngineDeadError`.

    Args:
        replicas: Replicas, not launched yet.
        router: Router of as many replicas.
        num_groups: Number of KV groups of the model, among which a replica's blocks are divided.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router,
        num_groups: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._replicas = replicas
        self._router = router
        self._num_groups = max(1, num_groups)
        self._clock = clock
        self._wake = WakeEvent()
        self._channels = ChannelSet([self._wake.fileno()])
        self._open: dict[str, _OpenRequest] = {}
        self._held: dict[str, _OpenRequest] = {}  # that wait for a replica, in order
        self._adapters: dict[str, AdapterRef] = {}  # loaded by `control`
        self._outbox: list[EngineOutput] = []
        self._num_scheduled_tokens = 0
        self._has_step = False  # a step has completed since the last `step`
        self._past = EngineStats()  # counters of the replicas that died
        self._is_closing = False
        self._death: EngineDeadError | None = None

    def start(self) -> Started:
        """Launch all replicas, and wait until all are up.

        Returns:
            The smallest values of all.

        Raises:
            QuireError: One of them cannot start; all were ended.
        """
        try:
            for replica in self._replicas:
                replica.launch()
            while starting := [replica for replica in self._replicas if replica.core is None]:
                for replica in starting:
                    if replica.poll_start(()):
                        self._take_up(replica)
                if any(replica.core is None for replica in starting):
                    self._wait(None)
        except BaseException:
            self.shutdown()
            raise
        return Started(min(replica.started.max_model_len for replica in self._replicas))

    @property
    def pids(self) -> list[int | None]:
        """Process id of each replica; None where no process runs."""
        return [replica.pid for replica in self._replicas]

    def add(self, request: EngineRequest) -> None:
        """Queue a request; it is sent to a replica before the next other command.

        Raises:
            InvalidRequestError: A request with this id is not finished yet.
            EngineDeadError: This process is a fork of the one that started the replicas.
        """
        self._check_owner()
        if request.request_id in self._open:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        opened = _OpenRequest(request)
        self._open[request.request_id] = self._held[request.request_id] = opened

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        ids_of: dict[int, list[str]] = {}
        for request_id in request_ids:
            opened = self._open.pop(request_id, None)
            self._held.pop(request_id, None)
            if opened is not None and opened.replica is not None:
                ids_of.setdefault(opened.replica, []).append(request_id)
        for index, ids in ids_of.items():
            core = self._replicas[index].core
            for request_id in ids:
                self._router.abort(index, request_id)
            if core is not None:
                core.abort(ids)
        gone = set(request_ids)
        self._outbox = [output for output in self._outbox if output.request_id not in gone]

    def has_work(self) -> bool:
        """Whether a step would have outputs."""
        return bool(self._open or self._outbox)

    def step(self) -> EngineOutputs | None:
        """Wait for the next step of any replica, and return all outputs that have arrived.

        Returns:
            The outputs, or None if `wake` was called first.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        while True:
            self._advance()
            if self._has_step or self._outbox or not self._open:
                return self._take_outputs()
            if self._wait(self._seconds_to_restart()):
                return None

    def wake(self) -> None:
        """Make a waiting `step` return; from any thread."""
        self._wake.set()

    def kill(self) -> bool:
        """Kill all processes, so that no method waits any longer; from any thread. Returns True."""
        self._is_closing = True
        if os.getpid() == self._wake.owner_pid:
            for replica in self._replicas:
                replica.kill()
        return True

    def control(self, command: Control) -> Any:
        """Execute a command in every replica between two steps; those that start follow.

        Returns:
            The result of the first replica.

        Raises:
            QuireError: A replica refused the command.
            EngineDeadError: All replicas are dead, and none is started again.
        """
        results = list(self._call_all(command).values())
        if isinstance(command, LoadAdapter):
            self._adapters[command.adapter.name] = command.adapter
            self._prepare(command.adapter)
        elif isinstance(command, ResetPrefixCache):
            self._router.reset_prefix_caches()
        return results[0]

    def stats(self) -> EngineStats:
        """Return the sum of the current statistics of all replicas.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        for replica, stats in self._call_all(ReadStats()).items():
            replica.stats = stats
        return self._sum()

    def check_health(self) -> None:
        """Notice replicas that have died, and start them again.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        self._advance()

    def shutdown(self) -> None:
        """End all processes after their running steps, or after a timeout. May be called twice."""
        self._is_closing = True
        if os.getpid() != self._wake.owner_pid:
            return
        for replica in self._replicas:
            replica.begin_shutdown()
        for replica in self._replicas:
            replica.shutdown()
        self._wake.close()
        self._death = self._death or EngineDeadError("the engine was shut down")

    # -- replicas --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Send what is queued, take what has arrived, start what is due; never waits.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        self._check_alive()
        self._place_held()
        for replica in self._replicas:
            try:
                self._poll(replica)
            except (QuireError, OSError) as error:
                self._bury(replica, error)
        self._place_held()
        for replica in self._replicas:
            self._flush(replica)
        if all(replica.is_down for replica in self._replicas):
            self._die()

    def _poll(self, replica: Replica) -> None:
        """Advance one replica.

        Raises:
            QuireError: It died, or cannot start.
            OSError: Its process cannot be launched.
        """
        if replica.core is not None:
            if (outputs := replica.core.poll_step()) is not None:
                self._take_step(replica, outputs)
        elif replica.next_start_s is None:
            if not replica.is_down and replica.poll_start(self._adapters.values()):
                self._take_up(replica)
        elif self._clock() >= replica.next_start_s:
            replica.launch()

    def _flush(self, replica: Replica) -> None:
        if replica.core is not None:
            try:
                replica.core.flush()
            except EngineDeadError as death:
                self._bury(replica, death)

    def _take_up(self, replica: Replica) -> None:
        """Send requests to a replica from now on."""
        num_blocks = replica.stats.num_blocks // self._num_groups
        self._router.start(replica.index, num_blocks, self._clock())
        if replica.incarnation > 1:
            logger.info("replica %d is up again (process %s)", replica.index, replica.pid)

    def _bury(self, replica: Replica, error: BaseException) -> None:
        """Remove a dead replica; run its requests again or fail them."""
        name = f"replica {replica.index} of {len(self._replicas)}, process {replica.pid},"
        if replica.core is not None:
            self._past = sum_counters([self._past, replica.stats])
        replica.bury(error, self._clock(), may_restart=not self._is_closing)
        lost = self._router.stop(replica.index)
        num_failed = sum([self._lose(request_id, name, error) for request_id in lost])
        following = "it stays down, because it died too often"
        if self._is_closing:
            following = "the engine shuts down"
        elif replica.next_start_s is not None:
            seconds = replica.next_start_s - self._clock()
            following = f"it is started again in {max(0.0, seconds):.1f} s"
        logger.error(
            "%s died: %s; %d of its requests fail, %d that had no token yet run again on another "
            "replica; %s",
            name,
            error,
            num_failed,
            len(lost) - num_failed,
            following,
        )

    def _lose(self, request_id: str, name: str, error: BaseException) -> bool:
        """Queue a request of a dead replica again, or fail it; return whether it failed."""
        opened = self._open[request_id]
        opened.num_deaths += 1
        opened.replica = None
        if not opened.has_output and opened.num_deaths == 1:
            self._held[request_id] = opened
            return False
        reason = "a part of the completion was sent already"
        if not opened.has_output:
            reason = "it is the second replica that died with it"
        message = f"{name} died: {error}; the request is not run again, because {reason}"
        del self._open[request_id]
        self._outbox.append(failed_output(request_id, report_of(ReplicaDeadError(message))))
        return True

    def _die(self) -> None:
        """Raise the error of the last replica, for good."""
        errors = [replica.last_error for replica in self._replicas]
        self._death = EngineDeadError(
            f"all {len(self._replicas)} replicas are dead; replica 0 last died of: {errors[0]}"
        )
        self._death.__cause__ = errors[0]
        raise self._death

    # -- requests --------------------------------------------------------------------------------

    def _place_held(self) -> None:
        """Send the queued requests to replicas, if any is up."""
        while self._held and self._router.has_replica:
            request_id = next(iter(self._held))
            opened = self._held.pop(request_id)
            placement = self._router.place(opened.request, self._clock())
            opened.replica = placement.replica
            core = self._replicas[placement.replica].core
            if core is None:
                raise RuntimeError(f"replica {placement.replica} is not up")
            core.add(opened.request)

    def _take_step(self, replica: Replica, outputs: EngineOutputs) -> None:
        """Take the outputs of a replica's step."""
        replica.stats = outputs.stats
        self._has_step = True
        self._num_scheduled_tokens += outputs.stats.num_scheduled_tokens
        current = self._router.apply(replica.index, replica.incarnation, outputs.outputs)
        for output in current:
            if output.finish_reason is not None:
                del self._open[output.request_id]
            elif output.token_ids or output.prompt_logprobs:
                self._open[output.request_id].has_output = True
        self._outbox += current

    def _take_outputs(self) -> EngineOutputs:
        """Return the outputs that have arrived since the last call."""
        outputs, self._outbox = self._outbox, []
        num_tokens, self._num_scheduled_tokens = self._num_scheduled_tokens, 0
        self._has_step = False
        stats = msgspec.structs.replace(self._sum(), num_scheduled_tokens=num_tokens)
        return EngineOutputs(outputs, stats)

    # -- calls -----------------------------------------------------------------------------------

    def _call_all(self, command: Control | ReadStats) -> dict[Replica, Any]:
        """Execute a command in all replicas that are up; wait for one if none is.

        Raises:
            QuireError: A replica refused the command.
            EngineDeadError: All replicas are dead, and none is started again.
        """
        results: dict[Replica, Any] = {}
        while not results:
            self._wait_for_replica()
            up = [replica for replica in self._replicas if replica.core is not None]
            refusals = self._gather(up, command, results)
            if refusals:
                raise refusals[0]
        return results

    def _gather(
        self, up: Sequence[Replica], command: Control | ReadStats, results: dict[Replica, Any]
    ) -> list[QuireError]:
        """Execute a command in replicas, all at the same time; return what they raised.

        Args:
            up: Replicas that are up.
            command: Command to execute.
            results: Results by replica, extended in place; without those that died meanwhile.
        """
        calls, refusals = [], []
        for replica in up:
            with self._surviving(replica):
                calls.append((replica, replica.core, replica.core.call(command)))  # type: ignore[union-attr]
        for replica, core, call_id in calls:
            with self._surviving(replica):
                try:
                    results[replica] = core.result(call_id)  # type: ignore[union-attr]
                except EngineDeadError:
                    raise
                except QuireError as error:
                    refusals.append(error)
        return refusals

    @contextlib.contextmanager
    def _surviving(self, replica: Replica) -> Any:
        """Go on without a replica that turns out to be dead."""
        try:
            yield
        except EngineDeadError as death:
            self._bury(replica, death)

    def _prepare(self, adapter: AdapterRef) -> None:
        """Load an adapter in the replicas that start, before they take requests."""
        for replica in self._replicas:
            with self._surviving(replica):
                replica.prepare(adapter)

    def _wait_for_replica(self) -> None:
        """Wait until a replica is up; a call of `wake` is kept for the next step.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        was_woken = False
        self._advance()
        while not self._router.has_replica:
            was_woken = self._wait(self._seconds_to_restart()) or was_woken
            self._advance()
        if was_woken:
            self._wake.set()

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a message or a death of any replica; return whether `wake` was called."""
        channels = (replica.channel for replica in self._replicas)
        self._channels.replace(channel for channel in channels if channel is not None)
        was_woken = bool(self._channels.wait(timeout_s))
        if was_woken:
            self._wake.clear()
        return was_woken

    def _seconds_to_restart(self) -> float | None:
        """Return the seconds until the next replica is started again; None: none is to be."""
        times = [replica.next_start_s for replica in self._replicas]
        due = [start_s for start_s in times if start_s is not None]
        return max(0.0, min(due) - self._clock()) if due else None

    def _sum(self) -> EngineStats:
        current = [
            replica.stats if replica.core is not None else None for replica in self._replicas
        ]
        return sum_stats(self._past, current)

    def _check_owner(self) -> None:
        if os.getpid() != self._wake.owner_pid:
            raise EngineDeadError(
                f"the engine belongs to process {self._wake.owner_pid}, and cannot be used in its "
                f"fork {os.getpid()}; start another engine here"
            )

    def _check_alive(self) -> None:
        self._check_owner()
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death
