"""Several replicas as one engine core: requests are routed, and each death costs only its own.

A request of a replica that died is run again on another one if none of its tokens was sent yet,
once; otherwise it fails. The replica is started again in the background.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.engine.results import failed_output, report_of
from quire.errors import EngineDeadError, InvalidRequestError, QuireError, ReplicaDeadError
from quire.launch.engine_process.engine_wire import ReadStats
from quire.launch.replicas.replica import Replica
from quire.launch.replicas.replica_group import (
    CameUp,
    CompletedStep,
    Died,
    ReplicaEvent,
    ReplicaGroup,
)
from quire.launch.replicas.replica_stats import sum_counters, sum_stats
from quire.launch.replicas.router import Router
from quire.messages import (
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    LoadAdapter,
    ResetPrefixCache,
    Started,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _OpenRequest:
    """A request that has not finished.

    Attributes:
        request: The request.
        replica: Its replica; None while it waits for one.
        has_output: Whether a part of its completion was returned.
        num_deaths: Number of replicas that died with it.
    """

    request: EngineRequest
    replica: Replica | None = None
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
        self._group = ReplicaGroup(replicas, clock)
        self._router = router
        self._num_groups = max(1, num_groups)
        self._clock = clock
        self._open: dict[str, _OpenRequest] = {}
        self._held: dict[str, _OpenRequest] = {}  # that wait for a replica, in order
        self._outbox: list[EngineOutput] = []
        self._num_scheduled_tokens = 0
        self._has_step = False  # a step has completed since the last `step`
        self._past = EngineStats()  # counters of the replicas that died
        self._death: EngineDeadError | None = None

    def start(self) -> Started:
        """Launch all replicas, and wait until all are up.

        Returns:
            The smallest values of all.

        Raises:
            QuireError: One of them cannot start; all were ended.
        """
        try:
            self._group.start()
        except BaseException:
            self.shutdown()
            raise
        for replica in self._group.replicas:
            self._take_up(replica)
        return Started(min(replica.started.max_model_len for replica in self._group.replicas))

    @property
    def pids(self) -> list[int | None]:
        """Process id of each replica; None where no process runs."""
        return [replica.pid for replica in self._group.replicas]

    def add(self, request: EngineRequest) -> None:
        """Queue a request; it is sent to a replica before the next other command.

        Raises:
            InvalidRequestError: A request with this id is not finished yet.
            EngineDeadError: This process is a fork of the one that started the replicas.
        """
        self._group.check_owner()
        if request.request_id in self._open:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        opened = _OpenRequest(request)
        self._open[request.request_id] = self._held[request.request_id] = opened

    def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        ids_of: dict[Replica, list[str]] = {}
        for request_id in request_ids:
            opened = self._open.pop(request_id, None)
            self._held.pop(request_id, None)
            if opened is not None and opened.replica is not None:
                ids_of.setdefault(opened.replica, []).append(request_id)
        for replica, ids in ids_of.items():
            self._abort_on(replica, ids)
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
            if self._group.wait():
                return None

    def wake(self) -> None:
        """Make a waiting `step` return; from any thread."""
        self._group.wake()

    def kill(self) -> bool:
        """Kill all processes, so that no method waits any longer; from any thread. Returns True."""
        self._group.kill()
        return True

    def control(self, command: Control) -> Any:
        """Execute a command in every replica between two steps; those that start follow.

        Returns:
            The result of the first replica.

        Raises:
            QuireError: A replica refused the command.
            EngineDeadError: All replicas are dead, and none is started again.
        """
        if isinstance(command, LoadAdapter):
            return self._load_adapter(command)
        results = list(self._call_all(command).values())
        if isinstance(command, ResetPrefixCache):
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
        self._group.shutdown()
        if self._group.is_owner:
            self._death = self._death or EngineDeadError("the engine was shut down")

    # -- replicas --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Send what is queued, take what has arrived, start what is due; never waits.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        self._check_alive()
        self._place_held()
        self._apply(self._group.poll())
        self._place_held()  # of replicas that died, and on those that came up
        self._apply(self._group.flush())
        if self._group.is_dead:
            self._die()

    def _check_alive(self) -> None:
        self._group.check_owner()
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death

    def _apply(self, events: Sequence[ReplicaEvent]) -> None:
        for event in events:
            match event:
                case CompletedStep():
                    self._take_step(event)
                case CameUp():
                    self._take_up(event.replica)
                    logger.info(
                        "replica %d is up again, process %s", event.replica.index, event.replica.pid
                    )
                case Died():
                    self._take_death(event)

    def _take_up(self, replica: Replica) -> None:
        """Send requests to a replica from now on."""
        num_blocks = replica.stats.num_blocks // self._num_groups
        self._router.start(replica.index, num_blocks, self._clock())

    def _take_death(self, died: Died) -> None:
        """Run the requests of a dead replica again, or fail them."""
        replica = died.replica
        name = f"replica {replica.index} of {len(self._group.replicas)}, process {died.pid},"
        if died.was_up:
            self._past = sum_counters([self._past, replica.stats])
        lost = self._router.stop(replica.index)
        num_failed = sum([self._lose(request_id, name, died.error) for request_id in lost])
        logger.error(
            "%s died: %s; %d of its requests fail, %d that had no token yet run again on another "
            "replica; %s",
            name,
            died.error,
            num_failed,
            len(lost) - num_failed,
            self._sequel(replica),
        )

    def _sequel(self, replica: Replica) -> str:
        """Return what follows the death of a replica, for people."""
        if self._group.is_closing:
            return "the engine shuts down"
        if replica.next_start_s is None:
            return "it stays down, because it died too often"
        return f"it is started again in {max(0.0, replica.next_start_s - self._clock()):.1f} s"

    def _die(self) -> None:
        """Raise the errors of the replicas, for good."""
        errors = {f"{replica.last_error}": replica.last_error for replica in self._group.replicas}
        count = len(self._group.replicas)
        self._death = EngineDeadError(f"all {count} replicas are dead: {'; '.join(errors)}")
        self._death.__cause__ = next(iter(errors.values()))
        raise self._death

    # -- requests --------------------------------------------------------------------------------

    def _place_held(self) -> None:
        """Send the queued requests to replicas, if any is up."""
        while self._held and self._router.has_replica:
            request_id = next(iter(self._held))
            opened = self._held.pop(request_id)
            placement = self._router.place(opened.request, self._clock())
            opened.replica = self._group.replicas[placement.replica]
            opened.replica.add(opened.request, self._clock())

    def _abort_on(self, replica: Replica, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._router.abort(replica.index, request_id)
        replica.abort(request_ids)

    def _take_step(self, step: CompletedStep) -> None:
        """Take the outputs of a replica's step."""
        self._has_step = True
        self._num_scheduled_tokens += step.outputs.stats.num_scheduled_tokens
        index, outputs = step.replica.index, step.outputs.outputs
        current = self._router.apply(index, step.incarnation, outputs)
        for output in current:
            if output.finish_reason is not None:
                del self._open[output.request_id]
            elif output.token_ids or output.prompt_logprobs:
                self._open[output.request_id].has_output = True
        self._outbox += current

    def _lose(self, request_id: str, name: str, error: BaseException) -> bool:
        """Queue a request of a dead replica again, or fail it; return whether it failed."""
        opened = self._open[request_id]
        opened.num_deaths += 1
        opened.replica = None
        if not opened.has_output and opened.num_deaths == 1:
            self._held[request_id] = opened
            return False
        reason = "it is the second replica that died with it"
        if opened.has_output:
            reason = "a part of the completion was sent already"
        message = f"{name} died: {error}; the request is not run again, because {reason}"
        del self._open[request_id]
        self._outbox.append(failed_output(request_id, report_of(ReplicaDeadError(message))))
        return True

    def _take_outputs(self) -> EngineOutputs:
        """Return the outputs that have arrived since the last call."""
        outputs, self._outbox = self._outbox, []
        num_tokens, self._num_scheduled_tokens = self._num_scheduled_tokens, 0
        self._has_step = False
        stats = msgspec.structs.replace(self._sum(), num_scheduled_tokens=num_tokens)
        return EngineOutputs(outputs, stats)

    # -- calls -----------------------------------------------------------------------------------

    def _load_adapter(self, command: LoadAdapter) -> Any:
        """Load an adapter; first in those that start, so that none comes up without it meanwhile.

        Raises:
            QuireError: A replica refused the adapter; replicas that start later do not load it.
            EngineDeadError: All replicas are dead, and none is started again.
        """
        self._check_alive()
        name, before = command.adapter.name, dict(self._group.adapters)
        self._apply(self._group.prepare(command.adapter))
        try:
            return next(iter(self._call_all(command).values()))
        except QuireError:
            self._group.adapters.pop(name)
            self._group.adapters.update(before)
            raise

    def _call_all(self, command: Control | ReadStats) -> dict[Replica, Any]:
        """Execute a command in all replicas that are up; wait for one if none is.

        Raises:
            QuireError: A replica refused the command.
            EngineDeadError: All replicas are dead, and none is started again.
        """
        results: dict[Replica, Any] = {}
        while not results:
            self._wait_for_replica()
            gathered = self._group.gather(command)
            self._apply(gathered.events)
            if gathered.refusals:
                raise gathered.refusals[0]
            results = gathered.results
        return results

    def _wait_for_replica(self) -> None:
        """Wait until a replica is up; a call of `wake` is kept for the next step.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        was_woken = False
        self._advance()
        while not self._router.has_replica:
            was_woken = self._group.wait() or was_woken
            self._advance()
        if was_woken:
            self._group.wake()

    def _sum(self) -> EngineStats:
        current = [None if each.core is None else each.stats for each in self._group.replicas]
        return sum_stats(self._past, current)
