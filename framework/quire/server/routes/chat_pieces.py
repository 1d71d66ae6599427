"""Pieces of one streamed chat choice: parser events as OpenAI's deltas.

A stream differs from a full response in one thing only: a tool call that breaks off has already
begun in the stream, where its text follows; a full response has only the text.
"""

from collections.abc import Iterable

from quire.frontend.chat.completion_parser import CompletionEvent, CompletionParser
from quire.frontend.random_bytes import random_bytes
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import Delta
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.protocol import ChatDelta, FinishReason, FunctionDelta, ToolCallDelta


class ChatPieces:
    """Converts the deltas of one choice.

    Args:
        parser: Parser that splits the text into reasoning, content and tool calls; None if all of
            it is content.
        allows_parallel: Whether calls after the first complete one are kept.
        shows_reasoning: Whether the reasoning is kept.

    Attributes:
        finish_reason: Finish reason in OpenAI's terms; None while the choice is incomplete.
    """

    def __init__(
        self, parser: CompletionParser | None, allows_parallel: bool, shows_reasoning: bool = True
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self._parser = parser
        self._allows_parallel = allows_parallel
        self._shows_reasoning = shows_reasoning
        self._ended: set[int] = set()  # the other calls broke off

    def read(self, delta: Delta) -> ChatDelta:
        """Return the piece that a delta adds."""
        if self._parser is None:
            piece = ChatDelta(content=delta.text) if delta.text else ChatDelta()
        else:
            piece = self._piece(_events(self._parser, delta))
        self.finish_reason = finish_reason_of(delta, bool(self._ended))
        return piece

    def _piece(self, events: Iterable[CompletionEvent]) -> ChatDelta:
        piece = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for event in events:
            match event:
                case TextDelta(text):
                    piece.content = (piece.content or "") + text
                case ReasoningDelta(text) if self._shows_reasoning:
                    piece.reasoning = piece.reasoning_content = (piece.reasoning or "") + text
                case ToolCallStart(index, name) if self._is_kept(index):
                    calls[index] = _call_start(index, name)
                case ToolCallArguments(index, arguments) if self._is_kept(index):
                    call = calls.setdefault(index, _call_continuation(index))
                    call.function.arguments += arguments
                case ToolCallEnd(index) if self._is_kept(index):
                    self._ended.add(index)
        if calls:
            piece.tool_calls = list(calls.values())
        return piece

    def _is_kept(self, index: int) -> bool:
        """Whether a call is kept; one that broke off does not exclude the next."""
        return self._allows_parallel or self._ended <= {index}


def new_call_id() -> str:
    """Return a new id of a tool call."""
    return f"call_{random_bytes.hex(12)}"


def _events(parser: CompletionParser, delta: Delta) -> list[CompletionEvent]:
    events = parser.feed(delta.text) if delta.text else []
    return events if delta.finish_reason is None else [*events, *parser.close()]


def _call_start(index: int, name: str) -> ToolCallDelta:
    return ToolCallDelta(
        index=index,
        id=new_call_id(),
        type="function",
        function=FunctionDelta(name=name, arguments=""),
    )


def _call_continuation(index: int) -> ToolCallDelta:
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=""))
