"""Exchange of requests and outputs between the event loop and the engine's thread.

All outputs of a step are passed in one call. Detokenization runs on the event loop: there it
overlaps with the next step's matrix products, which release the GIL. A stop string is therefore
found while the next step runs, and the tokens after it are dropped.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quire.errors import EngineDeadError, QuireError, RequestTimeoutError
from quire.frontend.completions.completion import PromptState
from quire.frontend.completions.delta_stream import DeltaStream
from quire.frontend.dispatch.backlog import Backlog
from quire.frontend.dispatch.control_calls import ControlCalls
from quire.frontend.dispatch.engine_client import EngineCoreClient, failure_of
from quire.frontend.dispatch.engine_thread import EngineThread
from quire.frontend.dispatch.kv_event_feed import KVEventFeed
from quire.frontend.dispatch.queue_gate import QueueGate, QueueLimits
from quire.frontend.dispatch.shared_backlog import SharedBacklog
from quire.frontend.dispatch.watched_steps import WatchedSteps
from quire.frontend.metrics.engine_metrics import EngineMetrics
from quire.messages import EngineOutput, EngineOutputs, EngineStats, num_tokens_of
from quire.outputs import Delta

OVERDUE_S = 1.0  # after a request's timeout, for the engine to report it first

Batch = list[tuple[DeltaStream, EngineOutput]]


@dataclass(frozen=True, slots=True)
class Done:
    """Work of the engine since its start, at one moment.

    Attributes:
        num_steps: Number of steps that the engine ran.
        num_computed_tokens: Number of tokens whose KV was computed, in prompts and completions.
        num_generated_tokens: Number of generated tokens.
    """

    num_steps: int = 0
    num_computed_tokens: int = 0
    num_generated_tokens: int = 0

    def after(self, step: EngineOutputs) -> "Done":
        """Return the work after one more step."""
        if (load := step.load) is not None:
            return Done(load.num_steps, load.num_computed_tokens, load.num_generated_tokens)
        return Done(
            self.num_steps + 1,
            self.num_computed_tokens + step.stats.num_scheduled_tokens,
            self.num_generated_tokens + sum(map(num_tokens_of, step.outputs)),
        )


class Dispatch:
    """The open streams, and the engine thread that fills them.

    Args:
        core: Engine core; its thread starts now.
        request_timeout_s: Default and upper limit of a request's timeout, as in the engine.
        limits: Limits on waiting requests; None: there are none.
        metrics: Metrics to count steps in; None for new ones.
        is_shared: Whether the engine has other front ends.

    Attributes:
        stats: Statistics of the engine after the last step.
        done: Work of the engine; replaced as a whole, so that no reader sees a partial update.
        thread: Thread that owns the core.
        controls: Control commands that wait for their turn in the thread.
        backlog: Open requests, and an estimate of how long a new one would wait.
        is_shared: Whether the engine has other front ends.
        kv_events: Changes of the prefix cache.
        watched_steps: Failures of the engine's steps in a row.
    """

    def __init__(
        self,
        core: EngineCoreClient,
        request_timeout_s: float | None = None,
        limits: QueueLimits | None = None,
        metrics: EngineMetrics | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        self.is_shared = is_shared
        self._metrics = metrics or EngineMetrics()
        self._request_timeout_s = request_timeout_s
        self._told_s = 0.0  # time of the last outputs
        self.stats = EngineStats()
        self.done = Done()
        self.backlog: QueueGate = (
            SharedBacklog(limits) if is_shared else Backlog(limits, max_timeout_s=request_timeout_s)
        )
        self._streams: dict[str, DeltaStream] = {}  # by the engine's request id
        self._unposted: dict[asyncio.AbstractEventLoop, list[DeltaStream]] = {}
        self._lock = threading.RLock()  # reentrant: a finalizer may run while it is held
        self.watched_steps = WatchedSteps()
        self.thread = EngineThread(core, self._deliver, self._fail_all)
        self.controls = ControlCalls(self.thread)
        self.kv_events = KVEventFeed(self.controls)
        self.thread.start()

    @property
    def stalled_s(self) -> float:
        """Seconds since the last step completed; 0 while the engine is known to be idle."""
        own_s = self.thread.stalled_s
        if not self.is_shared or not len(self.backlog):
            return own_s
        return max(own_s, time.monotonic() - self._told_s)

    def streams(self) -> list[DeltaStream]:
        """Return the open streams."""
        with self._lock:
            return list(dict.fromkeys(self._streams.values()))

    def start(self, completions: PromptState, *, is_whole: bool = False) -> DeltaStream:
        """Queue the requests of one prompt in the engine. Called on the event loop of the reader.

        The engine gets all that are queued in one turn of the loop together, and its thread is
        woken once for them.

        Args:
            completions: State of the prompt's completions.
            is_whole: Whether a completion is one delta, at its end.

        Raises:
            EngineDeadError: The engine stopped.
        """
        self.thread.check_alive()
        stream = DeltaStream(completions, asyncio.get_running_loop(), self._drop, is_whole=is_whole)
        requests = completions.admission.requests
        with self._lock:
            self._streams.update({request.request_id: stream for request in requests})
            self.backlog.add(requests)
        unposted = self._unposted.setdefault(stream.loop, [])
        if not unposted:
            stream.loop.call_soon(self._post, stream.loop)
        unposted.append(stream)
        self._start_timeout(stream)
        return stream

    def end(self, stream: DeltaStream) -> None:
        """Abort a request from outside its reader; the reader gets the last deltas."""
        self._call(stream.loop, partial(self._abort_stream, stream))

    def stop(self, stream: DeltaStream, index: int) -> None:
        """End one completion of a stream, of which the reader wants no more. Called by the reader.

        Args:
            stream: Stream whose completions are read in parts.
            index: Number of the completion.
        """
        request_id = stream.completions.stop(index, stream.take_unread(index))
        if request_id is not None:
            with self._lock:
                self._streams.pop(request_id, None)
                self.backlog.remove([request_id])
            self._abort([request_id])
        stream.end_if_finished()

    # -- in the engine's thread ----------------------------------------------------------------

    def _add(self, streams: Sequence[DeltaStream], core: EngineCoreClient) -> None:
        """Queue the requests of prompts; if one is refused, the others of its prompt fail."""
        for stream in streams:
            for request in stream.completions.admission.requests:
                core.add(request)

    def _deliver(self, outputs: EngineOutputs) -> None:
        self.stats, self._told_s = outputs.stats, time.monotonic()
        before, self.done = self.done, self.done.after(outputs)
        num_generated = self.done.num_generated_tokens - before.num_generated_tokens
        self.watched_steps.record(outputs.outputs)
        for step in outputs.steps:
            self._metrics.add_step(step)
        if outputs.kv_events:
            self.kv_events.publish(outputs.kv_events)
        batches: dict[asyncio.AbstractEventLoop, Batch] = defaultdict(list)
        with self._lock:
            self.backlog.take(outputs, num_generated)
            hopeless = [self._streams.get(each) for each in self.backlog.take_hopeless()]
            for output in outputs.outputs:
                stream = self._streams.get(output.request_id)
                if stream is not None:
                    batches[stream.loop].append((stream, output))
        for loop, batch in batches.items():
            self._call(loop, partial(self._apply_outputs, batch))
        for stream in hopeless:
            if stream is not None:
                self._call(stream.loop, partial(self._give_up, stream))

    def _fail_all(self, death: EngineDeadError) -> None:
        """Fail all open streams and pending control commands."""
        for stream in self.streams():
            self._call(stream.loop, partial(self._fail, stream, death))
        self.controls.fail(death)
        self.kv_events.fail(death)

    def _call(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Schedule a call on an event loop; if the loop is closed, drop its streams."""
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:
            closed = [stream for stream in self.streams() if stream.loop is loop]
            for stream in closed:
                self._drop(stream)

    # -- on the event loop -----------------------------------------------------------------------

    def _post(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the engine what was queued in this turn of a loop, and has not been dropped."""
        streams = [stream for stream in self._unposted.pop(loop) if not stream.is_over]
        if not streams:
            return
        try:
            self.thread.post(partial(self._add, streams))
        except EngineDeadError as death:
            for stream in streams:
                self._fail(stream, death)

    def _start_timeout(self, stream: DeltaStream) -> None:
        """Set a timer that fails a request if the engine does not, as in a step that hangs."""
        request = stream.completions.admission.requests[0]
        overdue_s = request.deadline_s(self._request_timeout_s) + OVERDUE_S
        if overdue_s < math.inf:
            stream.call_later(overdue_s - time.monotonic(), partial(self._expire, stream))

    def _expire(self, stream: DeltaStream) -> None:
        message = "the request timed out, and the engine does not answer: a step takes too long"
        self._fail(stream, RequestTimeoutError(message))

    def _give_up(self, stream: DeltaStream) -> None:
        """Fail a request that could not end in its time if it began now."""
        waited_s = time.monotonic() - stream.completions.admission.requests[0].arrival_s
        message = (
            f"the request waited for {waited_s:.2g} s, and could not end in the rest of its time; "
            "give it a longer timeout_s, or send fewer requests at once"
        )
        self._fail(stream, RequestTimeoutError(message))

    def _apply_outputs(self, batch: Batch) -> None:
        """Apply the outputs of a step to their streams; abort those that found a stop string."""
        must_abort, now_s = [], time.monotonic()
        for stream, output in batch:
            if output.request_id in self._streams and self._apply_output(stream, output, now_s):
                must_abort.append(output.request_id)
        self._abort(must_abort)

    def _apply_output(self, stream: DeltaStream, output: EngineOutput, now_s: float) -> bool:
        """Apply one output to its stream; return whether the engine's request must be aborted."""
        try:
            completions = stream.completions.apply(output, now_s)
            if stream.is_whole and completions[0].finish_reason is None:
                completions[0].detokenize()
                return completions[0].must_abort
            deltas = [completion.delta() for completion in completions]
        except Exception as error:  # noqa: BLE001 - it fails this request only, and is logged
            self._fail(stream, failure_of(error, f"request {output.request_id}"))
            return False
        if deltas[0].finish_reason is not None:
            with self._lock:
                self._streams.pop(output.request_id, None)
                self.backlog.remove([output.request_id])  # a stop string ends it before the engine
        for delta in deltas:
            stream.push(delta)
        return completions[0].must_abort

    def _abort_stream(self, stream: DeltaStream) -> None:
        for delta in self._drop(stream):
            stream.push(delta)

    def _fail(self, stream: DeltaStream, error: QuireError) -> None:
        """Fail a request, with all its completions."""
        stream.fail(error)
        self._drop(stream, error)

    # -- on either ------------------------------------------------------------------------------

    def _drop(self, stream: DeltaStream, error: QuireError | None = None) -> list[Delta]:
        """Forget a stream and abort its unfinished completions; return their last deltas."""
        unfinished = stream.completions.unfinished_ids
        self._forget(stream)
        self._abort(unfinished)
        return stream.completions.abort(error)

    def _forget(self, stream: DeltaStream) -> None:
        request_ids = [request.request_id for request in stream.completions.admission.requests]
        with self._lock:
            self.backlog.remove(request_ids)
            for request_id in request_ids:
                self._streams.pop(request_id, None)

    def _abort(self, request_ids: Sequence[str]) -> None:
        if request_ids:
            with contextlib.suppress(EngineDeadError):  # then there is nothing left to abort
                self.thread.post(lambda core: core.abort(request_ids))
