"""The tool calls of one completion, whose events keep the rules; a limit may cut the last call.

What ends a completion from without, such as `max_tokens`, may do so within a call. If the call has
begun, it counts as far as it is certain: what the parser makes of the rest at the close is left
out, be it arguments or text. A call that the model itself breaks off is void, and its text is text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.frontend.chat.parsing.event_rules import EventRules
from quire.frontend.chat.parsing.parser_guard import ParserOrigin, guarded
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)


@dataclass(frozen=True, slots=True)
class ToolCallCut:
    """End of a call that was cut: its concatenated pieces are the beginning of a JSON object."""

    index: int


CallEvent = ToolEvent | ToolCallCut


class ToolStage:
    """A tool parser whose events keep the rules; None: everything is text.

    Args:
        parser: The parser.
        origin: Origin of the parser.
        id_length: Number of letters and digits of the ids of calls; None: any id will do.
    """

    def __init__(
        self,
        parser: ToolParser | None,
        origin: ParserOrigin | None = None,
        id_length: int | None = None,
    ) -> None:
        self._parser = parser
        self._origin = origin
        self._rules = EventRules(id_length)
        self._open: list[int] = []  # calls without an end, and without a text behind their start

    def feed(self, text: str, *, is_in_reasoning: bool = False) -> list[ToolEvent]:
        """Return the events of the next text."""
        parser = self._parser
        if parser is None:
            return [TextDelta(text)] if text else []
        parser.is_in_reasoning = is_in_reasoning
        events = guarded(lambda: [*self._rules.checked(parser.feed(text))], self._origin)
        self._note(events)
        return events

    def close(self, *, is_cut: bool = False) -> list[CallEvent]:
        """Return the events held back.

        Args:
            is_cut: Whether something else than the model has ended the completion.
        """
        parser = self._parser
        if parser is None:
            return []
        events = guarded(lambda: [*self._rules.checked(parser.close())], self._origin)
        if not is_cut:
            return [*events]
        num_kept = _num_certain(events)
        self._note(events[:num_kept])
        if not self._open:
            return [*events]
        return [*events[:num_kept], *(ToolCallCut(index) for index in self._open)]

    def _note(self, events: Sequence[ToolEvent]) -> None:
        for event in events:
            match event:
                case ToolCallStart(index):
                    self._open.append(index)
                case ToolCallEnd(index) if index in self._open:
                    self._open.remove(index)
                case TextDelta():
                    self._open.clear()


def _num_certain(events: Sequence[ToolEvent]) -> int:
    """Return the number of events up to the last start or end of a call."""
    bounds = (ToolCallStart, ToolCallEnd)
    return max((at for at, event in enumerate(events, 1) if isinstance(event, bounds)), default=0)
