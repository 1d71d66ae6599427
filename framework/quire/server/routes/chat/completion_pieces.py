"""Pieces of completions in which tool calls are whole; a whole completion is one piece.

A call that a limit cut is text.
"""

import msgspec

from quire.interfaces.http_route import CompletionPiece
from quire.interfaces.reasoning import ReasoningDelta
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from quire.outputs import CompletionOutput, Delta, ToolCall
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.chat.choice_events import ChoiceEvents, one_delta
from quire.server.wire.finish_reason import finish_reason_of


class CompletionPieces:
    """Converts the deltas of one choice; a tool call is given once it is complete.

    Args:
        turn: Turn of a conversation that it is a choice of; None: it is text that is not split.
    """

    def __init__(self, turn: ChatTurn | None) -> None:
        self._events = (
            ChoiceEvents(None, True) if turn is None else turn.choice(keeps_cut_call=False)
        )
        self._calls: dict[int, tuple[ToolCallStart, list[str]]] = {}

    def read(self, delta: Delta) -> CompletionPiece:
        """Return what a delta adds."""
        text: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        for event in self._events.read(delta):
            match event:
                case TextDelta(piece):
                    text.append(piece)
                case ReasoningDelta(piece):
                    reasoning.append(piece)
                case ToolCallStart(index):
                    self._calls[index] = (event, [])
                case ToolCallArguments(index, piece):
                    self._calls[index][1].append(piece)
                case ToolCallEnd(index):
                    start, pieces = self._calls.pop(index)
                    calls.append(ToolCall(start.id or "", start.name, "".join(pieces)))
        return CompletionPiece(
            index=delta.index,
            text="".join(text),
            reasoning="".join(reasoning),
            tool_calls=tuple(calls),
            token_ids=delta.token_ids,
            logprobs=delta.logprobs,
            finish_reason=self._events.finish_reason,
            stop_reason=delta.stop_reason,
        )


def whole_piece(output: CompletionOutput, turn: ChatTurn | None) -> CompletionPiece:
    """Return a whole completion.

    Args:
        output: The completion.
        turn: Turn of a conversation, whose parsers split it; None: it is text.

    Raises:
        RequestError: It was aborted, or failed.
    """
    piece = CompletionPieces(turn).read(one_delta(output))
    end = finish_reason_of(output, bool(piece.tool_calls))
    return msgspec.structs.replace(piece, logprobs=output.logprobs, finish_reason=end)
