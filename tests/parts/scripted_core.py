"""An engine core without a model: a script returns the tokens of each request.

Its interface behaves as that of `EngineCore`: test_engine_client.py runs the same tests with both.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from quire.engine.results import outcome_of
from quire.errors import AdapterError, CapacityError, EngineDeadError, OverloadedError
from quire.messages import (
    BlockMap,
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    ErrorReport,
    LoadAdapter,
    ReadBlockMap,
    TokenLogprobs,
)


@dataclass
class Reply:
    """The result of a script: tokens, and then an error of the request or of the engine, if any."""

    token_ids: Sequence[int]
    error: ErrorReport | Exception | None = None


Script = Callable[[EngineRequest], Reply]


@dataclass
class Running:
    """A request, and the progress of its completion."""

    request: EngineRequest
    reply: Reply
    num_sent: int = 0
    num_prompt_sent: int = 1  # prompt tokens with logprobs sent; the first one has none


def echo(request: EngineRequest) -> Reply:
    """Return the prompt, and an end of text."""
    return Reply([*request.token_ids, request.stop_token_ids[0]])


def counting(request: EngineRequest) -> Reply:
    """Return the same as `CountingExecutor`: the last token plus one, and so on."""
    last = request.token_ids[-1]
    return Reply([last + 1 + i for i in range(request.max_tokens)])


class ScriptedCore:
    """An engine core that plays scripts; after the end of one, its last token is repeated.

    Args:
        script: Function from a request to the tokens that a model would return.
        tokens_per_step: Largest number of tokens of a request in a step.
        step_s: Duration of a step, in seconds.
        max_num_seqs: Largest number of requests that run at the same time.
        max_queued: Largest number of requests beyond those that can run.
        max_request_tokens: Number of tokens, prompt and completion together, that fit the cache.

    Attributes:
        prompt_chunk: Number of prompt tokens in a step, for requests with prompt_logprobs.
        num_cached_tokens: Number of prompt tokens that every request finds in the cache.
        block_maps: Result of `ReadBlockMap`.
        control_error: Error that every control raises.
    """

    def __init__(
        self,
        script: Script,
        tokens_per_step: int = 1,
        step_s: float = 0.0,
        max_num_seqs: int = 1000,
        max_queued: int = 1000,
        max_request_tokens: int = 10**9,
    ) -> None:
        self.script = script
        self.tokens_per_step = tokens_per_step
        self.step_s = step_s
        self.max_num_seqs = max_num_seqs
        self.max_queued = max_queued
        self.max_request_tokens = max_request_tokens
        self.waiting: dict[str, Running] = {}
        self.running: dict[str, Running] = {}
        self.requests: list[EngineRequest] = []  # all that were accepted
        self.aborted: list[str] = []
        self.num_steps = 0
        self.thread_names: set[str] = set()
        self.is_dead = False  # set by tests
        self.prompt_chunk = 1000
        self.num_cached_tokens = 0
        self.controls: list[Control] = []
        self.block_maps: list[BlockMap] = []
        self.control_error: Exception | None = None
        self.is_shut_down = False
        self._outbox: list[EngineOutput] = []

    def add(self, request: EngineRequest) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._outbox.append(_failed(request.request_id, refusal))
            return
        self.requests.append(request)
        self.waiting[request.request_id] = Running(request, self.script(request))

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            was_waiting = self.waiting.pop(request_id, None)
            if was_waiting or self.running.pop(request_id, None):
                self.aborted.append(request_id)

    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._outbox)

    def step(self) -> EngineOutputs:
        self.num_steps += 1
        self.thread_names.add(threading.current_thread().name)
        while self.waiting and len(self.running) < self.max_num_seqs:
            request_id = next(iter(self.waiting))
            self.running[request_id] = self.waiting.pop(request_id)
        time.sleep(self.step_s)
        outputs, self._outbox = self._outbox, []
        outputs += [self._advance(running) for running in list(self.running.values())]
        for output in outputs:
            if output.finish_reason is not None:
                self.running.pop(output.request_id, None)
        return EngineOutputs(outputs, self.stats())

    def control(self, command: Control) -> object:
        self.controls.append(command)
        if self.control_error is not None:
            raise self.control_error
        if isinstance(command, LoadAdapter):
            raise AdapterError(f"there are no files of {command.adapter.name!r}")
        if isinstance(command, ReadBlockMap):
            return self.block_maps
        return None

    def begin_control(self, command: Control) -> Future[object]:
        return outcome_of(lambda: self.control(command))

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.running), num_waiting=len(self.waiting))

    def wake(self) -> None: ...

    def kill(self) -> bool:
        return False

    def check_health(self) -> None:
        if self.is_dead:
            raise EngineDeadError("it died in its sleep")

    def shutdown(self) -> None:
        self.is_shut_down = True

    def num_cached_of(self, request: EngineRequest) -> int:
        """Return the prompt tokens that a request finds in the cache; may be overridden."""
        del request
        return self.num_cached_tokens

    def _refusal(self, request: EngineRequest) -> ErrorReport | None:
        if len(request.token_ids) + request.max_tokens > self.max_request_tokens:
            return ErrorReport(CapacityError.code, "prompt and completion can never fit the cache")
        if len(self.waiting) + len(self.running) >= self.max_num_seqs + self.max_queued:
            return ErrorReport(OverloadedError.code, "the queue is full")
        return None

    def _advance(self, running: Running) -> EngineOutput:
        request, reply, start = running.request, running.reply, running.num_sent
        if reply.error is not None and start >= len(reply.token_ids):
            if isinstance(reply.error, Exception):
                raise reply.error
            return _failed(request.request_id, reply.error)
        prompt_rows = self._prompt_rows(running)
        if running.num_prompt_sent < len(request.token_ids) and prompt_rows is not None:
            return EngineOutput(
                request_id=request.request_id, token_ids=[], prompt_logprobs=prompt_rows
            )
        num_left = len(reply.token_ids) - start if reply.error else self.tokens_per_step
        num_new = min(self.tokens_per_step, num_left, request.max_tokens - start)
        sampled = [_token(reply, start + i) for i in range(num_new)]
        return self._output(running, sampled, prompt_rows)

    def _prompt_rows(self, running: Running) -> list[TokenLogprobs] | None:
        request, start = running.request, running.num_prompt_sent
        num = request.params.prompt_logprobs
        rows = _rows(request.token_ids[start : start + self.prompt_chunk], num)
        running.num_prompt_sent += len(rows or ())
        return rows or None

    def _output(
        self, running: Running, sampled: list[int], prompt_rows: list[TokenLogprobs] | None
    ) -> EngineOutput:
        request, params = running.request, running.request.params
        emitted: list[int] = []
        finish_reason, stop_reason = None, None
        for token_id in sampled:
            emitted.append(token_id)
            running.num_sent += 1
            if token_id in request.stop_token_ids and running.num_sent > params.min_tokens:
                finish_reason = "stop"
                stop_reason = token_id if token_id in params.stop_token_ids else None
                break
            if running.num_sent == request.max_tokens:
                finish_reason = "length"
        return EngineOutput(
            request_id=request.request_id,
            token_ids=emitted,
            logprobs=_rows(emitted, params.logprobs),
            prompt_logprobs=prompt_rows,
            num_cached_tokens=self.num_cached_of(request),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )


def _token(reply: Reply, position: int) -> int:
    return reply.token_ids[min(position, len(reply.token_ids) - 1)]


def _failed(request_id: str, error: ErrorReport) -> EngineOutput:
    return EngineOutput(request_id=request_id, token_ids=[], finish_reason="error", error=error)


def _rows(token_ids: list[int], num: int | None) -> list[TokenLogprobs] | None:
    if num is None:
        return None
    numbers = [-1.0 - i for i in range(num)]
    if num > 2:
        numbers[-1] = float("-inf")
    alternatives = [300 + i for i in range(num)]
    return [TokenLogprobs([t, *alternatives], [-0.25, *numbers], 1) for t in token_ids]
