"""The rules that the events of a tool parser keep; a parser that breaks one has a fault."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NoReturn

from quire.frontend.chat.call_arguments import arguments_object
from quire.frontend.chat.parsing.call_ids import is_call_id, new_call_id
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
)


class BrokenRuleError(ValueError):
    """An event breaks a rule of the interface."""


class EventRules:
    """Checks the events of one completion, and gives each call an id of its own.

    Args:
        id_length: Number of letters and digits of an id; see `ToolParserCapabilities`.
    """

    def __init__(self, id_length: int | None = None) -> None:
        self._id_length = id_length
        self._num_calls = 0
        self._open: dict[int, list[str]] = {}  # pieces of arguments
        self._ids = set[str]()

    def checked(self, events: Iterable[ToolEvent]) -> Iterator[ToolEvent]:
        """Return the events, without empty ones.

        Raises:
            BrokenRuleError: An event breaks a rule.
        """
        for event in events:
            match event:
                case TextDelta(text):
                    if not text:
                        continue
                    yield event
                case ToolCallStart():
                    yield self._started(event)
                case ToolCallArguments(index, piece):
                    self._pieces(index).append(piece)
                    if piece:
                        yield event
                case ToolCallEnd(index):
                    _check_arguments("".join(self._pieces(index)))
                    del self._open[index]
                    yield event
                case _:
                    _break(f"a parser returns events, not {event!r:.100}")

    def _started(self, event: ToolCallStart) -> ToolCallStart:
        if event.index != self._num_calls:
            _break(f"the index of call {self._num_calls} is {event.index!r:.20}")
        if not isinstance(event.name, str) or not event.name:
            _break(f"the name of a call is a text, not {event.name!r:.100}")
        self._num_calls += 1
        self._open[event.index] = []
        is_own = is_call_id(event.id) and event.id not in self._ids
        call_id = event.id if is_own and event.id is not None else new_call_id(self._id_length)
        self._ids.add(call_id)
        return replace(event, id=call_id)

    def _pieces(self, index: int) -> list[str]:
        if index not in self._open:
            _break(f"there is no open call {index!r:.20}")
        return self._open[index]


def _check_arguments(text: str) -> None:
    if arguments_object(text) is None:
        _break(f"the arguments of a call are no JSON object: {text[:200]!r}")


def _break(rule: str) -> NoReturn:
    raise BrokenRuleError(rule)
