"""The asyncio frontend of the engine, independent of HTTP.

The event loop never runs a step, and the engine's thread never waits for a reader.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from difflib import get_close_matches
from functools import partial

from quire.errors import InvalidRequestError, OverloadedError, RequestError, UnknownModelError
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.chat.tools.format_checks import check_formats
from quire.frontend.chat.tools.tool_choice import ToolUse
from quire.frontend.completions.completion import PromptState
from quire.frontend.completions.delta_stream import DeltaStream
from quire.frontend.dispatch.dispatcher import Dispatch
from quire.frontend.dispatch.engine_client import EngineCoreClient
from quire.frontend.dispatch.engine_thread import STOP_TIMEOUT_S
from quire.frontend.dispatch.queue_gate import QueueLimits
from quire.frontend.intake.intake import Intake
from quire.frontend.intake.prompt import EncodedPrompt
from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.intake.time_limit import TimeLimit
from quire.frontend.metrics.request_observer import RequestObserver
from quire.frontend.served_model import ServedModel
from quire.frontend.text.tokenizer import Tokenizer
from quire.frontend.work_lanes import INLINE_SIZE, WorkLanes
from quire.messages import AdapterRef
from quire.outputs import Delta, Prompt, RequestOutput
from quire.sampling_params import BeamSearchParams, SamplingParams

DRAIN_POLL_S = 0.02
STALL_LIMIT_S = 60.0  # a step that takes longer counts as hanging

logger = logging.getLogger(__name__)


class AsyncFrontend:
    """Serves prompts from an event loop, over an engine core that runs in a thread.

    Args:
        core: Engine core; from now on called by this object alone.
        tokenizer: Tokenizer of the model.
        intake: Validation of requests.
        chat_template: Chat template of the model.
        completion_parsers: Factory of the parser of one completion.
        model_name: Name that requests use for the model.
        adapters: LoRA adapters by the name that requests use. May grow and shrink.
        max_model_len: Largest number of tokens, prompt and completion together.
        finished_hooks: `request_finished` hooks of the plugins.
        observer: Observer of the requests that have ended; None for a new one.
        stall_limit_s: Seconds of a step after which the engine counts as stalled.
        request_timeout_s: Default and upper limit of a request's timeout, as in the engine; also
            enforced here, because a step of the engine may hang.
        queue_limits: Limits on waiting requests, for `check_room`; None: there are none.
        is_engine_shared: Whether the engine has other front ends.
        served_model: Facts about the model; None: they are not known.

    Attributes:
        dispatch: Open streams, and the statistics of the engine.
        thread: Thread that runs the engine's steps.
        controls: Control commands that wait for their turn in the thread.
        lanes: Threads for work on prompts that are not short.
        observer: Observer of the requests that have ended, with the metrics of the engine.
    """

    def __init__(
        self,
        core: EngineCoreClient,
        tokenizer: Tokenizer,
        intake: Intake,
        chat_template: ChatTemplate,
        completion_parsers: CompletionParsers,
        model_name: str,
        adapters: dict[str, AdapterRef],
        max_model_len: int,
        *,
        finished_hooks: Sequence[RequestHook] = (),
        observer: RequestObserver | None = None,
        stall_limit_s: float = STALL_LIMIT_S,
        request_timeout_s: float | None = None,
        queue_limits: QueueLimits | None = None,
        is_engine_shared: bool = False,
        served_model: ServedModel | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.intake = intake
        self.chat_template = chat_template
        self.completion_parsers = completion_parsers
        self.model_name = model_name
        self.adapters = adapters
        self.max_model_len = max_model_len
        self.served_model = served_model or ServedModel()
        self._finished_hooks = tuple(finished_hooks)
        self._stall_limit_s = stall_limit_s
        self._request_timeout_s = request_timeout_s
        self._is_draining = False
        self.observer = observer or RequestObserver(model_name)
        self.dispatch = Dispatch(
            core,
            request_timeout_s,
            queue_limits,
            self.observer.metrics,
            is_shared=is_engine_shared,
        )
        self.thread = self.dispatch.thread
        self.controls = self.dispatch.controls
        self.lanes = WorkLanes()
        # Runs when this object is garbage-collected; that may be in any thread, so do not block.
        weakref.finalize(self, self.thread.stop_soon).atexit = False

    async def submit(
        self,
        prompt: Prompt | EncodedPrompt,
        params: SamplingParams | BeamSearchParams,
        *,
        adapter: AdapterRef | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        arrival_s: float | None = None,
        client: str = "",
        http_request_id: str | None = None,
        is_whole: bool = False,
    ) -> DeltaStream:
        """Check a request, queue it in the engine, and return the stream of its deltas.

        Args:
            prompt: Text, token ids, or a dict as for `Intake.admit`; or a result of `encode`.
            params: Parameters of sampling or of a beam search.
            adapter: LoRA adapter, a result of `resolve_adapter`.
            priority: Priority, smaller first; used if the scheduling policy reads it.
            timeout_s: Seconds that the request may take from its arrival; the engine's limit may
                be shorter.
            arrival_s: Time of its arrival, by `time.monotonic`; None: now.
            client: Identity of its sender for fair shares; empty: unknown.
            http_request_id: Id of the HTTP request that it belongs to, for its record.
            is_whole: Whether a completion is one delta, at its end; for who needs no parts.

        Raises:
            RequestError: The request is invalid, or its time has passed; nothing was queued.
            EngineDeadError: The engine stopped.
        """
        limit = self.time_limit(arrival_s, timeout_s)
        self.thread.check_alive()
        if self._is_draining:
            raise OverloadedError("the server is shutting down and takes no new requests")
        if not isinstance(prompt, EncodedPrompt):
            async with limit.hold():
                (prompt,) = await self.encode([prompt])
        if isinstance(params, SamplingParams) and self._needs_work(params):
            async with limit.hold():
                params = await self._prepared(params)
        admission = self.intake.admit(
            prompt,
            params,
            adapter=adapter,
            priority=priority,
            timeout_s=timeout_s,
            arrival_s=limit.arrival_s,
            client=client,
        )
        completions = PromptState(
            admission, self.tokenizer, self._finished_hooks, self.observer, http_request_id
        )
        return self.dispatch.start(completions, is_whole=is_whole)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams,
        *,
        adapter: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Delta]:
        """Generate; the deltas of n completions are interleaved and identified by `index`.

        The arguments are those of `submit`, but `adapter` is a name that `resolve_adapter` knows.
        Closing the iterator or cancelling its task aborts the unfinished completions. Raises what
        `submit` raises, and a `RequestError` if the request fails later.
        """
        if isinstance(params, SamplingParams) and params.best_of is not None:
            raise InvalidRequestError(
                "best_of cannot be streamed: the best completions are known once all have ended; "
                "call generate_whole, or use n",
                param="best_of",
            )
        stream = await self._submit_by_name(prompt, params, adapter, priority, timeout_s)
        async with stream:
            async for delta in stream:
                yield delta

    async def generate_whole(
        self,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams,
        *,
        adapter: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """Generate, and return all completions when they finished; raises as `generate` does."""
        stream = await self._submit_by_name(
            prompt, params, adapter, priority, timeout_s, is_whole=True
        )
        async with stream:
            try:
                async for _ in stream:
                    pass
            except RequestError as error:
                try:
                    error.output = stream.completions.result()
                except Exception:  # secondary: the request's own error is raised below
                    logger.exception(
                        "request %s failed, and what it generated could not be turned into text",
                        stream.request_id,
                    )
                raise
            return stream.completions.result()

    def abort(self, request_id: str) -> None:
        """Abort a request by the id of its stream; its reader gets a last delta per completion."""
        for stream in self.dispatch.streams():
            if stream.request_id == request_id:
                self.dispatch.end(stream)

    def is_ready(self) -> bool:
        """Return whether new requests are served."""
        is_alive = self.thread.death is None
        return is_alive and not self._is_draining and not self.is_stalled

    @property
    def is_stalled(self) -> bool:
        """Whether a step hangs: there is work, and no step completed within the limit."""
        return self.dispatch.stalled_s > self._stall_limit_s

    async def shutdown(
        self, timeout_s: float = 0.0, stop_timeout_s: float = STOP_TIMEOUT_S
    ) -> None:
        """Refuse new requests, wait for running ones, abort the rest, stop the engine.

        Args:
            timeout_s: Seconds that running requests may take to finish.
            stop_timeout_s: Seconds that the step running then may take. After that all waiting
                calls fail with an EngineDeadError, and the engine's process, if it has its own, is
                killed.
        """
        self._is_draining = True
        deadline = time.monotonic() + timeout_s
        while self.dispatch.streams() and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)
        for stream in self.dispatch.streams():
            self.dispatch.end(stream)
        self.lanes.close()
        await asyncio.to_thread(self.thread.stop, stop_timeout_s)

    async def encode(self, prompts: Sequence[Prompt]) -> list[EncodedPrompt]:
        """Tokenize prompts; in a thread if they are not short in total.

        Raises:
            RequestError: One of them is empty, too long or not a prompt.
        """
        size = sum(map(_size, prompts))
        return await self.lanes.run(size, lambda: [self.intake.encode(p) for p in prompts])

    def time_limit(self, arrival_s: float | None, timeout_s: float | None = None) -> TimeLimit:
        """Return the time limit of a request, of which more than the server's may be unknown yet.

        Args:
            arrival_s: Time of its arrival, by `time.monotonic`; None: now.
            timeout_s: Its own timeout, from the arrival on.

        Raises:
            InvalidRequestError: The timeout is not a positive number.
        """
        arrival_s = time.monotonic() if arrival_s is None else arrival_s
        return TimeLimit(arrival_s, timeout_s, self._request_timeout_s)

    @property
    def may_refuse(self) -> bool:
        """Whether `check_queue` or `check_room` would refuse some request."""
        return self.dispatch.backlog.may_refuse

    def check_queue(self) -> None:
        """Refuse a request while the queue is full; before its body is read.

        Raises:
            OverloadedError: It must be sent again later.
        """
        self.dispatch.backlog.check_queue()

    def check_room(self, limit: TimeLimit, max_tokens: int | None, priority: int) -> None:
        """Refuse a request that could not be queued, or would end too late; before other work.

        The estimate of the wait assumes the order of arrival, so it does not apply to a request
        that may go before others.

        Args:
            limit: Time limit of the request.
            max_tokens: Maximum number of tokens of its completion; None for the model's length.
            priority: Priority of the request.

        Raises:
            OverloadedError: It must be sent again later.
        """
        is_urgent = priority < 0 and self.intake.has_priorities
        most = self.max_model_len if max_tokens is None else max_tokens
        self.dispatch.backlog.check_room(limit.left_s, most, is_urgent=is_urgent)

    def resolve_adapter(self, name: str | None) -> AdapterRef | None:
        """Return the adapter that a request's `model` names; None for the base model.

        Raises:
            UnknownModelError: No model and no adapter has the name.
        """
        if name is None or name == self.model_name:
            return None
        if name in self.adapters:
            return self.adapters[name]
        known, shown = [self.model_name, *self.adapters], name[:200]
        near = get_close_matches(shown, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownModelError(
            f"there is no model or adapter {shown!r} here{hint} (served: {', '.join(known)})",
            param="model",
        )

    async def check_formats(self, tools: ToolUse, params: SamplingParams) -> None:
        """Check the formats of custom tools, beside the event loop; see `check_formats`."""
        if tools.formats:
            work = partial(check_formats, tools.formats, params, self.intake)
            await self.lanes.run(INLINE_SIZE + 1, work)  # short expressions may take long, too

    def _needs_work(self, params: SamplingParams) -> bool:
        """Whether parameters have a text to tokenize, or a constraint to check."""
        has_text = self.intake.companions.text_size(params) > 0
        return has_text or self.intake.has_new_constraint(params)

    async def _prepared(self, params: SamplingParams) -> SamplingParams:
        """Do the work on parameters that may take long, beside the event loop."""
        companions = self.intake.companions
        with_tokens = partial(companions.with_tokens, params)
        params = await self.lanes.run(companions.text_size(params), with_tokens)
        if self.intake.has_new_constraint(params):
            check = partial(self.intake.check_constraint, params)
            await self.lanes.run(INLINE_SIZE + 1, check)  # small schemas may take long, too
        return params

    async def _submit_by_name(
        self,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams,
        adapter: str | None,
        priority: int,
        timeout_s: float | None,
        *,
        is_whole: bool = False,
    ) -> DeltaStream:
        ref = self.resolve_adapter(adapter)
        return await self.submit(
            prompt,
            params,
            adapter=ref,
            priority=priority,
            timeout_s=timeout_s,
            is_whole=is_whole,
        )


def _size(prompt: object) -> int:
    """Return the size of a prompt in characters or ids; 0 if it is not a prompt."""
    given = (
        (prompt.get("prompt_token_ids"), prompt.get("prompt"))
        if isinstance(prompt, dict)
        else (prompt,)
    )
    return max(len(part) if isinstance(part, str | list | tuple) else 0 for part in given)
