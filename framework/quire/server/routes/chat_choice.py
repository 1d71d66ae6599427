"""Builder of one chat choice from parser events, as OpenAI's deltas or as the full choice.

Streamed and full responses go through the same class, so they differ in one thing only. A tool call
that breaks off has already begun in the stream, where its text follows; a full response has only
the text.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec import UNSET

from quire.errors import RequestFailedError
from quire.frontend.chat.completion_parser import CompletionEvent, CompletionParser
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import Delta
from quire.server.wire.protocol import (
    ChatChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    FinishReason,
    FunctionCall,
    FunctionDelta,
    MessageToolCall,
    TokenLogprob,
    ToolCallDelta,
)


class ChatChoiceBuilder:
    """Builds one choice from deltas.

    Args:
        index: Index of the choice.
        parser: Parser that splits the text into reasoning, content and tool calls.
        allows_parallel: Whether calls after the first complete one are kept.
    """

    def __init__(self, index: int, parser: CompletionParser, allows_parallel: bool) -> None:
        self.index = index
        self._parser = parser
        self._allows_parallel = allows_parallel
        self._accumulated = _AccumulatedChoice()

    def read(self, delta: Delta, logprobs: ChatLogprobs | None) -> ChatDelta:
        """Apply one delta; return the part that it adds, as a stream sends it."""
        events = self._parser.feed(delta.text) if delta.text else []
        if delta.finish_reason is not None:
            events = [*events, *self._parser.close()]
        piece = self._piece(events)
        self._accumulated.add(piece, logprobs)
        self._accumulated.finish_reason = self._finish_reason(delta)
        self._accumulated.stop_reason = delta.stop_reason
        return piece

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason in OpenAI's terms; None while the choice is incomplete."""
        return self._accumulated.finish_reason

    def choice(self) -> ChatChoice:
        """Return the full choice."""
        return self._accumulated.choice(self.index)

    def _piece(self, events: Iterable[CompletionEvent]) -> ChatDelta:
        piece = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for event in events:
            match event:
                case TextDelta(text):
                    piece.content = (piece.content or "") + text
                case ReasoningDelta(text):
                    piece.reasoning = piece.reasoning_content = (piece.reasoning or "") + text
                case ToolCallStart(index, name) if self._is_kept(index):
                    calls[index] = _call_start(index, name)
                case ToolCallArguments(index, arguments) if self._is_kept(index):
                    call = calls.setdefault(index, _call_continuation(index))
                    call.function.arguments += arguments
                case ToolCallEnd(index) if self._is_kept(index):
                    self._accumulated.ended.add(index)
        if calls:
            piece.tool_calls = list(calls.values())
        return piece

    def _finish_reason(self, delta: Delta) -> FinishReason | None:
        if delta.finish_reason == "stop":
            return "tool_calls" if self._accumulated.ended else "stop"
        return "length" if delta.finish_reason == "length" else None

    def _is_kept(self, index: int) -> bool:
        """Whether a call is kept; one that broke off does not exclude the next."""
        return self._allows_parallel or self._accumulated.ended <= {index}


@dataclass
class _AccumulatedChoice:
    """The parts of a choice that have arrived so far."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, MessageToolCall] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)  # the other calls broke off
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, piece: ChatDelta, logprobs: ChatLogprobs | None) -> None:
        """Append one piece."""
        if piece.content is not UNSET:
            self.content.append(piece.content)
        if piece.reasoning is not UNSET:
            self.reasoning.append(piece.reasoning)
        for call in piece.tool_calls or ():
            self._add_call(call)
        if logprobs is not None:
            self.logprobs = (self.logprobs or []) + logprobs.content

    def choice(self, index: int) -> ChatChoice:
        """Return the full choice.

        Raises:
            RequestFailedError: The choice is incomplete.
        """
        if self.finish_reason is None:
            raise RequestFailedError("the completion ended without a finish reason")
        content = "".join(self.content)
        calls = [call for i, call in self.calls.items() if i in self.ended]
        message = ChatMessage(content=content or (None if calls else ""))
        if self.reasoning:
            message.reasoning = message.reasoning_content = "".join(self.reasoning)
        if calls:
            message.tool_calls = calls
        return ChatChoice(
            index=index,
            message=message,
            logprobs=None if self.logprobs is None else ChatLogprobs(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _add_call(self, piece: ToolCallDelta) -> None:
        if piece.id is not UNSET:
            call = FunctionCall(name=piece.function.name or "", arguments="")
            self.calls[piece.index] = MessageToolCall(id=piece.id, function=call)
        self.calls[piece.index].function.arguments += piece.function.arguments


def _call_start(index: int, name: str) -> ToolCallDelta:
    return ToolCallDelta(
        index=index,
        id=f"call_{secrets.token_hex(12)}",
        type="function",
        function=FunctionDelta(name=name, arguments=""),
    )


def _call_continuation(index: int) -> ToolCallDelta:
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=""))
