"""Several replicas as one engine core: requests are routed, and each death costs only its own.

A request of a replica that died is run again on another one if none of its tokens was sent yet,
once; otherwise it fails. The replica is started again in the background.
"""

import heapq
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quire.engine.results import failed_output, report_of
from quire.errors import (
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    ReplicaDeadError,
    RequestTimeoutError,
)
from quire.launch.engine_process.engine_wire import ReadStats
from quire.launch.replicas.replica import Replica
from quire.launch.replicas.replica_group import (
    CameUp,
    CompletedCall,
    CompletedStep,
    Died,
    GroupCall,
    ReplicaEvent,
    ReplicaGroup,
)
from quire.launch.replicas.replica_stats import sum_counters, sum_stats
from quire.launch.replicas.router import Router
from quire.messages import (
    AdapterRef,
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    ErrorReport,
    LoadAdapter,
    ResetPrefixCache,
    Started,
)

ENGINE_FIRST_S = 0.5  # after a request's deadline, for its engine to report it
HEARTBEAT_S = 5.0  # for which `step` waits while a replica answers

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


@dataclass(slots=True)
class _OpenCall:
    """A command that not all replicas have executed yet.

    Attributes:
        command: The command.
        outcome: Its result, once all have.
        replaced: Adapter that had the name of the one that it loads.
    """

    command: Control | ReadStats
    outcome: Future[Any] = field(default_factory=Future)
    replaced: AdapterRef | None = None


class ReplicatedCore:
    """Engines in processes, with the methods of `EngineCore`.

    It is used by one thread, except `wake` and `kill`, which any thread may call. In a fork of the
    process that started it, its methods raise `EngineDeadError`.

    Args:
        replicas: Replicas, not launched yet.
        router: Router of as many replicas.
        num_groups: Number of KV groups of the model, among which a replica's blocks are divided.
        request_timeout_s: Default and upper limit of a request's timeout, as in the engines.
        max_num_held: Number of requests that may wait for a replica while none is up; more are
            refused.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router,
        num_groups: int = 1,
        request_timeout_s: float | None = None,
        max_num_held: int = sys.maxsize,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = ReplicaGroup(replicas, clock)
        self._router = router
        self._num_groups = max(1, num_groups)
        self._request_timeout_s = request_timeout_s
        self._max_num_held = max_num_held
        self._clock = clock
        self._deadlines: list[tuple[float, str]] = []  # a heap; some requests may have ended
        self._open: dict[str, _OpenRequest] = {}
        self._held: dict[str, _OpenRequest] = {}  # that wait for a replica, in order
        self._queued: list[_OpenCall] = []  # that wait for a replica, in order
        self._calls: dict[GroupCall, _OpenCall] = {}
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
        if not self._router.has_replica and len(self._held) >= self._max_num_held:
            self._outbox.append(failed_output(request.request_id, self._overload()))
            return
        opened = _OpenRequest(request)
        if (deadline_s := request.deadline_s(self._request_timeout_s)) < math.inf:
            heapq.heappush(self._deadlines, (deadline_s + ENGINE_FIRST_S, request.request_id))
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
        return bool(self._open or self._outbox or self._calls or self._queued)

    def step(self) -> EngineOutputs | None:
        """Wait for the next step of any replica, and return all outputs that have arrived.

        Returns:
            The outputs, or None if `wake` was called first. There are none after `HEARTBEAT_S` if
            all work is that of replicas that hang, and another one answers, so the engine is ready.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        heartbeat_s = self._clock() + HEARTBEAT_S
        while True:
            self._advance()
            if self._has_step or self._outbox or not self.has_work():
                return self._take_outputs()
            if self._clock() >= heartbeat_s and self._has_answering():
                return self._take_outputs()
            if self._group.wait(min(HEARTBEAT_S, self._seconds_to_expiry())):
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
        return self._wait_for(self.begin_control(command))

    def begin_control(self, command: Control) -> Future[Any]:
        """Begin what `control` does; `step` completes it, while the replicas go on.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        self._check_alive()
        opened = _OpenCall(command)
        if isinstance(command, LoadAdapter):
            # First in those that start, so that none comes up without it meanwhile.
            opened.replaced = self._group.adapters.get(command.adapter.name)
            self._apply(self._group.prepare(command.adapter))
        self._queued.append(opened)
        return opened.outcome

    def stats(self) -> EngineStats:
        """Return the sum of the current statistics of all replicas.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        self._check_alive()
        opened = _OpenCall(ReadStats())
        self._queued.append(opened)
        self._wait_for(opened.outcome)
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
        self._expire(self._clock())
        self._send_queued()
        self._apply(self._group.poll())
        while self._send_queued():  # of replicas that died, and to those that came up
            self._apply(self._group.poll())
        if self._group.is_dead:
            self._die()

    def _send_queued(self) -> bool:
        """Send the queued requests and calls, if any replica is up; return whether any was sent."""
        was_placed, was_called = self._place_held(), self._send_calls()
        return was_placed or was_called

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
                case CompletedCall():
                    self._take_call(event.call)

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

    def _place_held(self) -> bool:
        """Send the queued requests to replicas, if any is up; return whether any was sent."""
        if not (self._held and self._router.has_replica):
            return False
        self._mark_silent()
        for request_id in list(self._held):
            opened = self._held.pop(request_id)
            placement = self._router.place(opened.request, self._clock())
            opened.replica = self._group.replicas[placement.replica]
            opened.replica.add(opened.request, self._clock())
        return True

    def _has_answering(self) -> bool:
        """Whether a replica is up and owes no message for long."""
        now_s, replicas = self._clock(), self._group.replicas
        return any(each.core is not None and not each.is_silent(now_s) for each in replicas)

    def _mark_silent(self) -> None:
        """Tell the router which replicas may hang."""
        now_s = self._clock()
        for replica in self._group.replicas:
            if self._router.loads.is_up(replica.index):
                is_silent = replica.is_silent(now_s)
                self._router.loads.mark_silent(replica.index, is_silent=is_silent, now_s=now_s)

    def _seconds_to_expiry(self) -> float:
        """Return the seconds until a request may have to fail; infinity without deadlines."""
        return max(0.0, self._deadlines[0][0] - self._clock()) if self._deadlines else math.inf

    def _expire(self, now_s: float) -> None:
        """Fail the requests whose engine, if they have one, did not report their timeout."""
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, request_id = heapq.heappop(self._deadlines)
            opened = self._open.get(request_id)
            if opened is None or opened.request.deadline_s(self._request_timeout_s) > now_s:
                continue  # it has ended; the id may be that of another one by now
            where = "it waited for a replica to start again"
            if opened.replica is not None:
                where = f"replica {opened.replica.index} does not answer"
            self.abort([request_id])
            message = (
                f"the request had not finished {now_s - opened.request.arrival_s:.3g} s after its "
                f"arrival, and its time was over: {where}"
            )
            report = ErrorReport(RequestTimeoutError.code, message)
            self._outbox.append(failed_output(request_id, report))

    def _overload(self) -> ErrorReport:
        """Return the error of a request that is refused while no replica is up."""
        return ErrorReport(
            OverloadedError.code,
            f"{len(self._held)} requests wait for a replica to start again, and no more may "
            "(max_num_queued of each replica); try again later",
        )

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

    def _send_calls(self) -> bool:
        """Send the queued calls to the replicas, if any is up; return whether any was sent."""
        if not (self._queued and self._router.has_replica):
            return False
        queued, self._queued = self._queued, []
        for opened in queued:
            call, deaths = self._group.begin(opened.command)
            self._calls[call] = opened
            self._apply(deaths)
        return True

    def _take_call(self, call: GroupCall) -> None:
        """Complete a call; it waits for another replica if all that had it died."""
        opened = self._calls.pop(call)
        if call.refusals:
            self._forget_adapter(opened)
            opened.outcome.set_exception(call.refusals[0])
        elif not call.results:
            self._queued.append(opened)
        else:
            self._apply_call(opened.command, call.results)
            opened.outcome.set_result(next(iter(call.results.values())))

    def _apply_call(self, command: Control | ReadStats, results: dict[Replica, Any]) -> None:
        """Apply what all replicas have done."""
        match command:
            case ResetPrefixCache():
                self._router.reset_prefix_caches()
            case ReadStats():
                for replica, stats in results.items():
                    replica.stats = stats

    def _forget_adapter(self, opened: _OpenCall) -> None:
        """Let replicas that start not load an adapter that one of them has refused."""
        if not isinstance(opened.command, LoadAdapter):
            return
        adapter, adapters = opened.command.adapter, self._group.adapters
        if adapters.get(adapter.name) is not adapter:
            return  # another one has its name by now
        if opened.replaced is None:
            del adapters[adapter.name]
        else:
            adapters[adapter.name] = opened.replaced

    def _wait_for(self, outcome: Future[Any]) -> Any:
        """Wait for the outcome of a call; a call of `wake` is kept for the next step.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        was_woken = False
        self._advance()
        while not outcome.done():
            was_woken = self._group.wait() or was_woken
            self._advance()
        if was_woken:
            self._group.wake()
        return outcome.result()

    def _sum(self) -> EngineStats:
        current = [None if each.core is None else each.stats for each in self._group.replicas]
        return sum_stats(self._past, current)
