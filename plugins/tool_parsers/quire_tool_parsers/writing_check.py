"""Whether a format reads the calls that its `writing` writes."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from quire.interfaces.tool_parsing import TextDelta, ToolCallArguments, ToolCallStart, ToolParser
from quire_tool_parsers.call_format import CallFormat
from quire_tool_parsers.call_writing import CallWriting

Call = tuple[str, dict[str, Any]]

FIND: Call = ("find", {"city": "Oslo", "days": 3})
NOW: Call = ("now", {})
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "name": FIND[0],
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
    {"name": NOW[0], "parameters": {"type": "object", "properties": {}}},
)
_SHOWN = 200  # characters of a text in an error


def check_writing(form: CallFormat, parser: type[ToolParser]) -> None:
    """Raise a ValueError that names the field if a parser does not read the calls of `writing`.

    Args:
        form: Format of the calls.
        parser: Its parser.
    """
    if form.writing is None:
        return
    writer = _CallWriter(form, form.writing)
    for template in form.writing.calls:
        for call in (FIND, NOW):
            _check(parser, "calls", writer.text(template, [call]), [call])
        if not form.writing.is_single:
            two = [FIND, NOW]
            _check(parser, "separator", writer.text(template, two), two)
    _check_triggers(form.writing)


def _check(parser: type[ToolParser], field: str, text: str, calls: Sequence[Call]) -> None:
    found = _read(parser, text)
    if found == (list(calls), ""):
        return
    meant = " and ".join(_shown(call) for call in calls)
    calls_found, content = found
    parts = [*map(_shown, calls_found), *([f"the text {content!r:.{_SHOWN}}"] if content else [])]
    raise ValueError(
        f"writing.{field} does not agree with the other fields: {meant} is written as "
        f"{text!r:.{_SHOWN}}, and read as {' and '.join(parts) or 'nothing'}"
    )


def _read(parser: type[ToolParser], text: str) -> tuple[list[Call], str]:
    """Return the calls of a completion, and the text beside them."""
    reader = parser.for_tools(TOOLS)
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    content = ""
    for event in [*reader.feed(text), *reader.close()]:
        match event:
            case TextDelta(piece):
                content += piece
            case ToolCallStart(index, name):
                names[index], arguments[index] = name, ""
            case ToolCallArguments(index, piece):
                arguments[index] += piece
    return [(name, _value(arguments[index])) for index, name in names.items()], content


def _value(arguments: str) -> Any:
    """Return arguments; as text, if they break off."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _shown(call: Call) -> str:
    name, arguments = call
    return f"a call of {name!r:.80} with {json.dumps(arguments):.{_SHOWN}}"


def _check_triggers(writing: CallWriting) -> None:
    """Raise a ValueError unless calls in free text begin with a trigger."""
    starts = [writing.begin] if writing.begin else writing.calls
    if writing.triggers and not all(start.startswith(writing.triggers) for start in starts):
        raise ValueError(
            "writing.triggers must have the text with which "
            f"{'writing.begin' if writing.begin else 'each of writing.calls'} begins"
        )


class _CallWriter:
    """Writer of calls by templates, as the grammar allows them."""

    def __init__(self, form: CallFormat, writing: CallWriting) -> None:
        self._writing = writing
        self._text_argument = writing.text_argument or writing.argument
        self._is_plain = bool(writing.text_argument) or form.notations[0] == "tagged"

    def text(self, template: str, calls: Sequence[Call]) -> str:
        """Return the text of calls."""
        writing = self._writing
        return (
            writing.begin
            + writing.separator.join(self._call(template, *call) for call in calls)
            + writing.end
        )

    def _call(self, template: str, name: str, arguments: dict[str, Any]) -> str:
        members = self._writing.argument_separator.join(self._members(arguments))
        filled = template.replace("$name", name).replace("$number", "0")
        return filled.replace("$arguments", json.dumps(arguments)).replace("$members", members)

    def _members(self, arguments: dict[str, Any]) -> Iterator[str]:
        for key, value in arguments.items():
            is_text = isinstance(value, str)
            argument = self._text_argument if is_text else self._writing.argument
            written = value if is_text and self._is_plain else json.dumps(value)
            yield argument.replace("$key", key).replace("$value", written)
