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
from quire.launch.replicas.replica import SILENCE_S, Replica
from quire.launch.replicas.replica_group import (
    CameUp,
    CompletedCall,
    CompletedStep,
    Died,
    GroupCall,
    ReplicaEvent,
    ReplicaGroup,
)
from quire.launch.replicas.replica_kv_feed import ReplicaKVFeed
from quire.launch.replicas.replica_stats import join_maps, sum_counters, sum_stats
from quire.launch.replicas.routing.router import Router
from quire.messages import (
    AdapterRef,
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    ErrorReport,
    LoadAdapter,
    ReadBlockMap,
    ReadKVSnapshot,
    ResetPrefixCache,
    Started,
    StepStats,
)

ENGINE_FIRST_S = 0.5  # after a request's deadline, for its engine to report it
MIN_DEADLINES = 64  # up to which those of requests that have ended are kept
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

    command: Control
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
        max_num_open: Number of requests that may be unfinished while no replica answers; more are
            refused. As long as one answers, the engines refuse what is too much.
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        router: Router,
        num_groups: int = 1,
        request_timeout_s: float | None = None,
        max_num_open: int = sys.maxsize,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = ReplicaGroup(replicas, clock)
        self._router = router
        self._num_groups = max(1, num_groups)
        self._request_timeout_s = request_timeout_s
        self._max_num_open = max_num_open
        self._clock = clock
        self._deadlines: list[tuple[float, str]] = []  # a heap; some requests may have ended
        self._max_deadlines = MIN_DEADLINES
        self._open: dict[str, _OpenRequest] = {}
        self._held: dict[str, _OpenRequest] = {}  # that wait for a replica, in order
        self._queued: list[_OpenCall] = []  # that wait for a replica, in order
        self._calls: dict[GroupCall, _OpenCall] = {}
        self._outbox: list[EngineOutput] = []
        self._kv_feed = ReplicaKVFeed()
        self._num_scheduled_tokens = 0
        self._steps: list[StepStats] = []
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
        if len(self._open) >= self._max_num_open and not self._has_answering():
            self._outbox.append(failed_output(request.request_id, self._overload()))
            return
        opened = _OpenRequest(request)
        self._open[request.request_id] = self._held[request.request_id] = opened
        self._add_deadline(request)

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
        has_news = self._outbox or self._kv_feed
        return bool(self._open or has_news or self._calls or self._queued)

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
            if self._has_step or self._outbox or self._kv_feed or not self.has_work():
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
        outcome = self.begin_control(command)
        self._wait_until(outcome.done)
        return outcome.result()

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

        A replica that may hang is not waited for: it counts with its last statistics, and is marked
        as silent.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        self._advance()
        self._apply(self._group.ask_for_stats())
        self._wait_until(lambda: not self._late_replicas(), self._seconds_to_silence)
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
        self._mark_silent()
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
        self._kv_feed.take_death(replica.index)
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
        """Tell the router and the log which replicas may hang."""
        now_s, loads = self._clock(), self._router.loads
        for replica in self._group.replicas:
            index, is_silent = replica.index, replica.is_silent(now_s)
            if not loads.is_up(index) or is_silent == loads.is_silent(index):
                continue
            loads.mark_silent(index, is_silent=is_silent, now_s=now_s)
            name = f"replica {index} of {len(self._group.replicas)}, process {replica.pid},"
            if is_silent:
                logger.warning(
                    "%s owes an answer and has sent nothing for %g s; new requests go to others "
                    "as long as one of them answers",
                    name,
                    SILENCE_S,
                )
            else:
                logger.info("%s answers again", name)

    def _seconds_to_expiry(self) -> float:
        """Return the seconds until a request may have to fail; infinity without deadlines."""
        return max(0.0, self._deadlines[0][0] - self._clock()) if self._deadlines else math.inf

    def _add_deadline(self, request: EngineRequest) -> None:
        """Record the deadline of an open request; once they have doubled, drop those of others."""
        if (limit_s := self._deadline_s(request)) == math.inf:
            return
        heapq.heappush(self._deadlines, (limit_s, request.request_id))
        if len(self._deadlines) > self._max_deadlines:
            open_ones = [opened.request for opened in self._open.values()]
            found = [(self._deadline_s(each), each.request_id) for each in open_ones]
            self._deadlines = sorted(entry for entry in found if entry[0] < math.inf)
            self._max_deadlines = max(MIN_DEADLINES, 2 * len(self._deadlines))

    def _deadline_s(self, request: EngineRequest) -> float:
        return request.deadline_s(self._request_timeout_s) + ENGINE_FIRST_S

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
        """Return the error of a request that is refused while no replica answers."""
        return ErrorReport(
            OverloadedError.code,
            f"{len(self._open)} requests wait for a replica to answer or to start again, and no "
            "more may (max_num_seqs and max_num_queued of each replica); try again later",
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
        self._steps += [msgspec.structs.replace(each, replica=index) for each in step.outputs.steps]
        self._kv_feed.take(index, step.outputs.kv_events)
        current = self._router.apply(index, step.incarnation, outputs)
        for output in current:
            if output.finish_reason is not None:
                del self._open[output.request_id]
            elif output.token_ids or output.prompt_logprobs:
                self._open[output.request_id].has_output = True
        self._outbox += [_of_replica(output, index) for output in current]

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
        steps, self._steps = self._steps, []
        self._has_step = False
        stats = msgspec.structs.replace(self._sum(), num_scheduled_tokens=num_tokens)
        return EngineOutputs(outputs, stats, self._kv_feed.pop(), steps)

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
            opened.outcome.set_result(self._apply_call(opened.command, call.results))

    def _apply_call(self, command: Control, results: dict[Replica, Any]) -> Any:
        """Apply what all replicas have done, and return their common result."""
        match command:
            case ReadKVSnapshot():
                snapshots = {replica.index: result for replica, result in results.items()}
                return self._kv_feed.join_snapshots(snapshots)
            case ReadBlockMap():
                return join_maps({each.index: found for each, found in results.items()})
            case ResetPrefixCache():
                self._router.reset_prefix_caches()
        return next(iter(results.values()))

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

    def _wait_until(
        self, is_over: Callable[[], bool], limit_s: Callable[[], float] = lambda: math.inf
    ) -> None:
        """Wait for what replicas send; a call of `wake` is kept for the next step.

        Args:
            is_over: Function that returns whether nothing is waited for any more.
            limit_s: Function that returns after how many seconds `is_over` may change by itself.

        Raises:
            EngineDeadError: All replicas are dead, and none is started again.
        """
        was_woken = False
        self._advance()
        while not is_over():
            was_woken = self._group.wait(limit_s()) or was_woken
            self._advance()
        if was_woken:
            self._group.wake()

    # -- statistics ------------------------------------------------------------------------------

    def _late_replicas(self) -> list[Replica]:
        """Return the replicas that were asked for statistics, and will soon reply or be silent."""
        now_s, replicas = self._clock(), self._group.replicas
        return [r for r in replicas if not (r.has_current_stats or r.is_silent(now_s))]

    def _seconds_to_silence(self) -> float:
        """Return the seconds until the first of the replicas that are late counts as silent."""
        times = [r.silence_s for r in self._late_replicas() if r.silence_s is not None]
        return max(0.0, min(times, default=math.inf) - self._clock())

    def _sum(self) -> EngineStats:
        now_s, replicas = self._clock(), self._group.replicas
        current = [None if replica.core is None else replica.stats for replica in replicas]
        silent = {replica.index for replica in replicas if replica.is_silent(now_s)}
        return sum_stats(self._past, current, silent)


def _of_replica(output: EngineOutput, index: int) -> EngineOutput:
    """Name the replica of a request in its first output, which says when it started."""
    if not (index and output.started_s):
        return output
    return msgspec.structs.replace(output, replica=index)
