"""Where the engine's thread and the event loop meet: requests cross one way, outputs the other.

All outputs of a step cross in one call. Detokenizing happens on the event loop: there it overlaps
with the next step's matrix products, which let go of the interpreter. A stop string is therefore
seen while the next step runs, and its surplus is dropped.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from quire.errors import EngineDeadError, QuireError, RequestFailedError, RequestTimeoutError
from quire.frontend.completions.completion import PromptState
from quire.frontend.completions.delta_stream import DeltaStream
from quire.frontend.dispatch.control_calls import ControlCalls
from quire.frontend.dispatch.engine_client import EngineCoreClient
from quire.frontend.dispatch.engine_thread import STOP_TIMEOUT_S, EngineThread
from quire.frontend.dispatch.throughput import Throughput
from quire.messages import Control, EngineOutput, EngineOutputs, EngineStats
from quire.outputs import Delta

OVERDUE_S = 1.0  # after a request's time is up, for the engine to say so itself

logger = logging.getLogger(__name__)

Batch = list[tuple[DeltaStream, EngineOutput]]


class Dispatch:
    """The streams that are open, and the thread that fills them.

    Args:
        core: The engine; its thread starts now.
        request_timeout_s: What the engine gives requests that name no time, and at most.

    Attributes:
        stats: What the engine said about itself after the last step.
        throughput: What it has done since its start.
    """

    def __init__(self, core: EngineCoreClient, request_timeout_s: float | None = None) -> None:
        self._request_timeout_s = request_timeout_s
        self.stats = EngineStats()
        self.throughput = Throughput()
        self._streams: dict[str, DeltaStream] = {}  # by the engine's request id
        self._lock = threading.RLock()  # a finalizer may come in between
        self._thread = EngineThread(core, self._deliver, self._announce_death)
        self._controls = ControlCalls(self._thread)
        self._thread.start()

    @property
    def death(self) -> EngineDeadError | None:
        """Why the engine stopped, if it did."""
        return self._thread.death

    @property
    def stalled_s(self) -> float:
        """Seconds since the engine last finished a step; 0 while there is nothing to do."""
        return self._thread.stalled_s

    def streams(self) -> list[DeltaStream]:
        """Return the streams that are open."""
        with self._lock:
            return list(dict.fromkeys(self._streams.values()))

    def start(self, answers: PromptState) -> DeltaStream:
        """Hand the requests of one prompt to the engine. On the event loop that will read.

        Raises:
            EngineDeadError: The engine stopped.
        """
        stream = DeltaStream(answers, asyncio.get_running_loop(), self._drop)
        requests = answers.admission.requests
        with self._lock:
            self._streams.update({request.request_id: stream for request in requests})
        try:
            self._thread.post(partial(self._add, stream))
        except EngineDeadError:
            self._forget(stream)
            raise
        self._limit(stream)
        return stream

    def end(self, stream: DeltaStream) -> None:
        """Abort a request for somebody else than its reader, who is told."""
        self._call(stream.loop, partial(self._end_here, stream))

    async def control(self, command: Control) -> Any:
        """Have the engine do something between two steps; returns and raises what it does."""
        return await self._controls.call(command)

    async def wait_for_death(self) -> EngineDeadError:
        """Return why the engine stopped, as soon as it did."""
        return await self._controls.wait_for_death()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the thread after the step that runs; if that hangs, without it."""
        self._thread.stop(timeout_s)

    def stop_soon(self) -> None:
        """Let the thread end after the step that runs, without waiting for it."""
        self._thread.stop_soon()

    # -- in the engine's thread ----------------------------------------------------------------

    def _add(self, stream: DeltaStream, core: EngineCoreClient) -> None:
        """Queue the requests of one prompt; if one is refused, its output ends the others."""
        for request in stream.answers.admission.requests:
            core.add(request)

    def _deliver(self, outputs: EngineOutputs) -> None:
        self.stats = outputs.stats
        self.throughput.take(outputs)
        batches: dict[asyncio.AbstractEventLoop, Batch] = defaultdict(list)
        with self._lock:
            for output in outputs.outputs:
                stream = self._streams.get(output.request_id)
                if stream is not None:
                    batches[stream.loop].append((stream, output))
        for loop, batch in batches.items():
            self._call(loop, partial(self._hand_over, batch))

    def _announce_death(self, death: EngineDeadError) -> None:
        """Fail everybody who waits."""
        for stream in self.streams():
            self._call(stream.loop, partial(self._fail, stream, death))
        self._controls.fail(death)

    def _call(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Call something on an event loop; one that is closed has no readers any more."""
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:
            gone = [stream for stream in self.streams() if stream.loop is loop]
            for stream in gone:
                self._drop(stream)

    # -- on the event loop -----------------------------------------------------------------------

    def _limit(self, stream: DeltaStream) -> None:
        """End a request that is late and of which the engine says nothing: its step may hang."""
        request = stream.answers.admission.requests[0]
        limits = [s for s in (request.timeout_s, self._request_timeout_s) if s is not None]
        if limits:
            passed_s = time.monotonic() - request.arrival_s
            stream.call_later(min(limits) + OVERDUE_S - passed_s, partial(self._expire, stream))

    def _expire(self, stream: DeltaStream) -> None:
        message = "the request's time is up, and the engine does not answer: a step takes too long"
        self._fail(stream, RequestTimeoutError(message))

    def _hand_over(self, batch: Batch) -> None:
        """Turn outputs into deltas."""
        must_abort = []
        for stream, output in batch:
            if output.request_id in self._streams and self._advance(stream, output):
                must_abort.append(output.request_id)
        self._abort(must_abort)

    def _advance(self, stream: DeltaStream, output: EngineOutput) -> bool:
        """Add one output to its stream; whether the engine must be told to stop."""
        try:
            answer = stream.answers.take(output)
            delta = answer.delta()
        except QuireError as error:
            self._fail(stream, error)
            return False
        except Exception as error:  # ours, but only this request may suffer from it
            logger.exception("request %s could not be decoded", output.request_id)
            failure = RequestFailedError("the answer could not be decoded; see the log")
            failure.__cause__ = error
            self._fail(stream, failure)
            return False
        if delta.finish_reason is not None:
            with self._lock:
                self._streams.pop(output.request_id, None)
        stream.push(delta)
        return answer.must_abort

    def _end_here(self, stream: DeltaStream) -> None:
        for delta in self._drop(stream):
            stream.push(delta)

    def _fail(self, stream: DeltaStream, error: QuireError) -> None:
        """End a request with an error; its other answers go too."""
        stream.fail(error)
        self._drop(stream)

    # -- on either ------------------------------------------------------------------------------

    def _drop(self, stream: DeltaStream) -> list[Delta]:
        """Forget a stream and abort what is not over; return the last deltas."""
        unfinished = stream.answers.unfinished_ids
        self._forget(stream)
        self._abort(unfinished)
        return stream.answers.abort()

    def _forget(self, stream: DeltaStream) -> None:
        with self._lock:
            for request in stream.answers.admission.requests:
                self._streams.pop(request.request_id, None)

    def _abort(self, request_ids: Sequence[str]) -> None:
        if request_ids:
            with contextlib.suppress(EngineDeadError):  # then there is nothing left to abort
                self._thread.post(lambda core: core.abort(request_ids))
