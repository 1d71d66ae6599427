"""The rules that the events of parsers keep; a parser that breaks one has a fault."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from quire.frontend.chat.call_arguments import arguments_object
from quire.frontend.chat.parsing.call_ids import is_call_id, new_call_id
from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningEvent
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
                    if checked_text(text):
                        yield event
                case ToolCallStart():
                    yield self._started(event)
                case ToolCallArguments(index, piece):
                    self._pieces(index).append(checked_text(piece))
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


def checked_text(text: Any) -> str:
    """Return the text of an event.

    Raises:
        BrokenRuleError: It is none.
    """
    if not isinstance(text, str):
        _break(f"the text of an event is a str, not {text!r:.100}")
    return text


def reasoning_events(events: Iterable[ReasoningEvent]) -> list[ReasoningDelta | TextDelta]:
    """Return the events of a reasoning parser without empty ones; the content is read for calls.

    Raises:
        BrokenRuleError: An event breaks a rule.
    """
    return [each for each in map(_reasoning_event, events) if checked_text(each.text)]


def _reasoning_event(event: ReasoningEvent) -> ReasoningDelta | TextDelta:
    if isinstance(event, ReasoningDelta):
        return event
    if not isinstance(event, ContentDelta):
        _break(f"a parser returns events, not {event!r:.100}")
    return TextDelta(event.text)


def _check_arguments(text: str) -> None:
    if arguments_object(text) is None:
        _break(f"the arguments of a call are no JSON object: {text[:200]!r}")


def _break(rule: str) -> NoReturn:
    raise BrokenRuleError(rule)
