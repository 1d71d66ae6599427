"""One response: generated in full or as a stream, from the same output items."""

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial

from quire.server.http.json_response import in_thread_if, json_of
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.chat.choice_events import one_delta
from quire.server.routes.chat.reasoning_tokens import num_reasoning_tokens
from quire.server.routes.generation import Generation
from quire.server.routes.observed_generations import ObservedGenerations
from quire.server.routes.responses.chat_request import errors_as_sent
from quire.server.routes.responses.item_events import ItemEvents
from quire.server.routes.responses.mcp.tool_rounds import ToolRounds
from quire.server.routes.responses.output import Change, Closed, Output
from quire.server.routes.responses.store.snapshot_event import Event, SnapshotEvent
from quire.server.routes.responses.turn_loop import TurnLoop
from quire.server.wire.http_errors import detail_of, status_of
from quire.server.wire.responses import (
    FailureCode,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)

Keep = Callable[[bytes], bool]


class ResponseRun:
    """A response, ready to be generated once.

    Args:
        turn: Turn of the conversation.
        response: Response as it begins.
        keep: Function that stores the JSON of the response that has ended, and returns whether it
            could; None: it is stored otherwise, or not at all.
        on_failure: Function that logs a failure that is not raised.
        tools: Tools of tool servers; None without any.

    Attributes:
        response: Response; complete at the end.
        tools: Tools of tool servers; None without any.
    """

    def __init__(
        self,
        turn: ChatTurn,
        response: ResponseObject,
        keep: Keep | None,
        on_failure: Callable[[Exception], None],
        tools: ToolRounds | None = None,
    ) -> None:
        self.response = response
        self._keep = keep
        self._on_failure = on_failure
        self.tools = tools
        self._places = () if tools is None else tools.places
        self._events = ItemEvents()
        self._broken_off: list[Change] = []
        self._output = Output(turn.tools.custom, None if tools is None else tools.offered)
        self._turns = TurnLoop(turn, self._output, tools)

    @property
    def generation(self) -> Generation:
        """The completion of the last turn."""
        return self._turns.generation

    @property
    def observed(self) -> ObservedGenerations:
        """The completions of all turns."""
        return self._turns.observed

    def release(self) -> None:
        """Release what is reserved for its completions. May be called twice."""
        self.observed.release()

    async def whole(self) -> bytes:
        """Generate; return the full response as JSON, and raise what `Generation` raises.

        Once a call of a tool has run, a failure is the status of the response: clients send a
        request again whose status is that of an error, and the call would have its effect twice.
        """
        try:
            return await self._whole()
        except Exception as error:
            if self.tools is None or self.tools.num_calls == 0:
                raise
            return await self.fail(error)

    async def _whole(self) -> bytes:
        is_plain = self._turns.is_single and self.generation.num_top_logprobs is None
        if is_plain and not self.response.background:
            with errors_as_sent():
                (completion,) = await self.generation.outputs()
            read = partial(self._turns.reader.read, one_delta(completion), None)
            await in_thread_if(self.generation.is_large, read)
        else:  # deltas say which tokens are those of a message, and that the generation has begun
            async with aclosing(self._changes()) as all_changes:
                async for _ in all_changes:
                    pass
        return await self.ended()

    async def stream(self) -> AsyncGenerator[bytes]:
        """Generate; yield all events of a stream as JSON.

        An error after the first event is an event. The first event is sent with the first token, so
        that an error before it has an HTTP status.
        """
        has_begun = False
        try:
            async with aclosing(self.events()) as events:
                async for event in events:
                    has_begun = True
                    if isinstance(event, SnapshotEvent):
                        yield event.encoded(json_of(self.response))
                    else:
                        yield event
            final = await self.ended()
        except Exception as error:
            if not has_begun:
                raise
            final = await self.fail(error)
            for event in self.closing_events():
                yield event
        yield await in_thread_if(
            self.generation.is_large, partial(self.last_event().encoded, final)
        )

    async def events(self) -> AsyncGenerator[Event]:
        """Generate; yield the events of a stream but the last one, and raise what `deltas` raises.

        The first event of a response in the background does not wait for the first token.
        """
        events, has_begun = self._events, self.response.background
        if has_begun:
            yield events.created(self.response.status)
        async with aclosing(self._changes()) as all_changes:
            async for changes, is_first in all_changes:
                if is_first and not has_begun:
                    yield events.created(self.response.status)
                if is_first:
                    yield events.in_progress(self.response.status)
                for change in changes:
                    is_large = isinstance(change, Closed) and self.generation.is_large
                    for event in events.of(change):
                        yield await in_thread_if(is_large, partial(json_of, event))

    @property
    def num_events(self) -> int:
        """Number of events that were made."""
        return self._events.num_events

    def last_event(self, number: int | None = None) -> SnapshotEvent:
        """Return the last event of the stream, after the end.

        Args:
            number: Its number; None: the one after all that were made.
        """
        number = self.num_events if number is None else number
        return self._events.last(self.response.status, number)

    async def ended(self) -> bytes:
        """Complete the response; store it, and return its JSON."""
        response, is_complete = self.response, self._turns.is_complete
        response.usage = await self._usage()
        response.output = self._output.items
        if is_complete:
            response.status = "completed"
            response.completed_at = int(time.time())
        else:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails(self._turns.incomplete_reason)
        encode, is_large = partial(json_of, response), self.generation.is_large
        encoded = await in_thread_if(is_large, encode)
        if self._is_kept(encoded):
            return encoded
        response.store = False
        return await in_thread_if(is_large, encode)

    async def fail(self, error: Exception) -> bytes:
        """Make it a response that failed; log that, store it, and return its JSON.

        Its usage counts the tokens up to the failure.
        """
        self._on_failure(error)
        self._break_off()
        self.response.usage = await self._usage()
        return self._failed(error)

    def fail_without_output(self, error: Exception) -> bytes:
        """Make it a response that failed and lost its output; log that, and return its JSON."""
        self._on_failure(error)
        self.response.output = []
        return self._failed(error)

    def cancel(self) -> bytes:
        """Make it a response that was cancelled, and return its JSON."""
        self._break_off()
        self.response.status = "cancelled"
        return json_of(self.response)

    def closing_events(self) -> Iterator[bytes]:
        """Yield the events of what was open when it failed, or was cancelled."""
        changes, self._broken_off = self._broken_off, []
        for change in changes:
            for event in self._events.of(change):
                yield json_of(event)

    def _break_off(self) -> None:
        self._broken_off = self._output.break_off()
        self.response.output = self._output.items

    def _failed(self, error: Exception) -> bytes:
        response = self.response
        response.error, response.status = _failure(error), "failed"
        response.completed_at = response.incomplete_details = None
        encoded = json_of(response)
        if self._is_kept(encoded):
            return encoded
        response.store = False
        return json_of(response)

    def _is_kept(self, encoded: bytes) -> bool:
        """Whether the response is stored as it says."""
        return not self.response.store or self._keep is None or self._keep(encoded)

    async def _changes(self) -> AsyncGenerator[tuple[list[Change], bool]]:
        """Generate; yield the changes of the output items by step, and whether it is the first."""
        is_first = True
        with errors_as_sent(self._places):
            async with aclosing(self._turns.changes()) as all_changes:
                async for changes in all_changes:
                    self.response.status = "in_progress"
                    yield changes, is_first
                    is_first = False

    async def _usage(self) -> ResponseUsage:
        usage, frontend = self.observed.usage(), self.generation.frontend
        texts, num_tokens = [self._output.reasoning], usage.completion_tokens
        return ResponseUsage(
            usage.prompt_tokens,
            InputDetails(usage.prompt_tokens_details.cached_tokens),
            num_tokens,
            OutputDetails(await num_reasoning_tokens(frontend, texts, num_tokens)),
            usage.total_tokens,
        )


def _failure(error: Exception) -> ResponseFailure:
    detail, status = detail_of(error), status_of(error)
    code: FailureCode = "server_error" if status >= 500 else "invalid_prompt"
    if status == 429:
        code = "rate_limit_exceeded"
    return ResponseFailure(code, detail.message, detail.type, detail.param)
