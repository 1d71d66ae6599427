"""Pieces of one streamed chat choice: parser events as OpenAI's deltas.

A stream differs from a full response in one thing only: a tool call that the model breaks off has
already begun in the stream, where its text follows; a full response has only the text.
"""

from collections.abc import Collection

from msgspec import UNSET

from quire.frontend.chat.custom_input import CustomInput
from quire.frontend.chat.parsing.tool_stage import ToolCallCut
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import Delta
from quire.server.routes.chat.choice_events import ChoiceEvents
from quire.server.wire.protocol import (
    ChatDelta,
    CustomCall,
    FinishReason,
    FunctionDelta,
    ToolCallDelta,
)


class ChatPieces:
    """Converts the deltas of one choice.

    Args:
        events: Events of the choice.
        shows_reasoning: Whether the reasoning is kept.
        custom: Names of custom tools.

    Attributes:
        reasoning: Pieces of the reasoning, shown or not.
    """

    def __init__(
        self,
        events: ChoiceEvents,
        shows_reasoning: bool = True,
        custom: Collection[str] = (),
    ) -> None:
        self.reasoning: list[str] = []
        self._events = events
        self._shows_reasoning = shows_reasoning
        self._custom = custom
        self._inputs: dict[int, CustomInput] = {}  # of the calls of custom tools

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
                case ReasoningDelta(text):
                    self.reasoning.append(text)
                    if not self._shows_reasoning:
                        continue
                    piece.reasoning = piece.reasoning_content = (piece.reasoning or "") + text
                case ToolCallStart(index, name) if name in self._custom:
                    self._inputs[index] = CustomInput()
                    calls[index] = _custom_start(event)
                case ToolCallStart(index):
                    calls[index] = _call_start(event)
                case ToolCallArguments(index, arguments) if index in self._inputs:
                    _add_input(calls, index, self._inputs[index].feed(arguments))
                case ToolCallArguments(index, arguments):
                    _add_arguments(calls, index, arguments)
                case ToolCallEnd(index) | ToolCallCut(index) if index in self._inputs:
                    _add_input(calls, index, self._inputs.pop(index).close())
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


def _custom_start(event: ToolCallStart) -> ToolCallDelta:
    return ToolCallDelta(
        index=event.index,
        id=UNSET if event.id is None else event.id,
        type="custom",
        custom=CustomCall("", event.name),
    )


def _add_arguments(calls: dict[int, ToolCallDelta], index: int, arguments: str) -> None:
    call = calls.get(index)
    if call is None:
        calls[index] = ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments))
    elif call.function is not UNSET:
        call.function.arguments += arguments


def _add_input(calls: dict[int, ToolCallDelta], index: int, piece: str) -> None:
    call = calls.get(index)
    if call is None:
        if piece:
            calls[index] = ToolCallDelta(index=index, custom=CustomCall(piece))
    elif call.custom is not UNSET:
        call.custom.input += piece
