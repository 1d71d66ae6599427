"""Pieces of one streamed chat choice: parser events as OpenAI's deltas.

A stream differs from a full response in one thing only: a tool call that breaks off has already
begun in the stream, where its text follows; a full response has only the text.
"""

from msgspec import UNSET

from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from quire.outputs import Delta
from quire.server.routes.chat.choice_events import ChoiceEvents
from quire.server.wire.protocol import ChatDelta, FinishReason, FunctionDelta, ToolCallDelta


class ChatPieces:
    """Converts the deltas of one choice.

    Args:
        events: Events of the choice.
        shows_reasoning: Whether the reasoning is kept.
    """

    def __init__(self, events: ChoiceEvents, shows_reasoning: bool = True) -> None:
        self._events = events
        self._shows_reasoning = shows_reasoning

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason in OpenAI's terms; None while the choice is incomplete."""
        return self._events.finish_reason

    def read(self, delta: Delta) -> ChatDelta:
        """Return the piece that a delta adds."""
        piece = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for event in self._events.read(delta):
            match event:
                case TextDelta(text):
                    piece.content = (piece.content or "") + text
                case ReasoningDelta(text) if self._shows_reasoning:
                    piece.reasoning = piece.reasoning_content = (piece.reasoning or "") + text
                case ToolCallStart(index):
                    calls[index] = _call_start(event)
                case ToolCallArguments(index, arguments):
                    call = calls.setdefault(index, _call_continuation(index))
                    call.function.arguments += arguments
        if calls:
            piece.tool_calls = list(calls.values())
        return piece


def _call_start(event: ToolCallStart) -> ToolCallDelta:
    return ToolCallDelta(
        index=event.index,
        id=UNSET if event.id is None else event.id,
        type="function",
        function=FunctionDelta(name=event.name, arguments=""),
    )


def _call_continuation(index: int) -> ToolCallDelta:
    return ToolCallDelta(index=index, function=FunctionDelta(arguments=""))
