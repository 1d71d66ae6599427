"""Tool calls of a checkpoint's own `response_template`: parsed, never forced."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

from quire.interfaces.tool_parsing import (
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
    ToolParserCapabilities,
)
from quire_tool_parsers.argument_types import ArgumentTypes
from quire_tool_parsers.response_template.calls import calls_in
from quire_tool_parsers.response_template.content import is_in_string
from quire_tool_parsers.response_template.regions import Closed, Opened, Part, Regions
from quire_tool_parsers.response_template.template import TOOL_CALLS, Field, read_template
from quire_tool_parsers.text_writer import TextWriter

MAX_QUOTED = 64  # closing texts within strings of one region

Events = Iterator[ToolEvent]


class TemplateToolParser(ToolParser):
    """Parser of the regions `tool_calls`; a call is returned at the end of its region.

    Attributes:
        field: Field of the calls.
    """

    field: ClassVar[Field]

    def __init__(self, tools: Sequence[dict[str, Any]] = ()) -> None:
        self._types = ArgumentTypes(tools)
        self._regions = Regions((self.field,))
        self._text = TextWriter()
        self._opened: Opened | None = None
        self._body: list[str] = []
        self._quoted: list[int] = []  # parts of the body that could have been its end
        self._index = 0

    @classmethod
    def from_file_text(cls, text: str) -> type[ToolParser]:
        """Return the parser of a template.

        Args:
            text: JSON text of the template.

        Raises:
            ValueError: The template is invalid, or calls have no marker.
        """
        template = read_template(text)
        field = template.fields.get(TOOL_CALLS)
        if field is None or field.open is None:
            raise ValueError(f"fields.{TOOL_CALLS} must be there, with open or open_pattern")
        capabilities = ToolParserCapabilities(markers=template.markers())
        body = {"field": field, "capabilities": capabilities, "__module__": __name__}
        return type("ResponseTemplateTools", (cls,), body)

    @classmethod
    def for_tools(cls, tools: Sequence[dict[str, Any]]) -> Self:
        """Return a parser of a completion with calls of `tools`."""
        return cls(tools)

    def feed(self, delta: str) -> list[ToolEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        return [event for part in self._regions.feed(delta) for event in self._read(part)]

    def close(self) -> list[ToolEvent]:
        """Return what was held back; a region without calls is text."""
        events = [event for part in self._regions.close() for event in self._read(part)]
        return [*events, *self._text.close()]

    def _read(self, part: Part) -> Events:
        if isinstance(part, Opened):
            self._opened, self._body, self._quoted = part, [], []
        elif isinstance(part, Closed):
            yield from self._end(part)
        elif self._opened is not None:
            self._body.append(part.text)
        else:
            yield from self._text.write(part.text)

    def _end(self, closed: Closed) -> Events:
        """Return the calls of a region at its end."""
        opened, body = self._opened, "".join(self._body)
        if opened is None:
            return
        if self._is_quoted(closed, body):
            self._quoted.append(len(self._body))
            self._body.append(closed.marker)
            self._regions.stay(self.field)
            return
        self._opened = None
        try:
            value = self.field.value(body, opened.captures | closed.captures)
            calls = [*calls_in(value, self._types, is_untyped=self.field.is_untyped)]
        except ValueError:
            yield from self._give_up(opened, closed)
            return
        for call in calls:
            yield ToolCallStart(self._index, call.name, call.id)
            yield ToolCallArguments(self._index, call.arguments)
            yield ToolCallEnd(self._index)
            self._index += 1
        self._text.end_call()

    def _is_quoted(self, closed: Closed, body: str) -> bool:
        """Whether what closed a region is part of a string in it."""
        spec = self.field.spec
        is_json = spec.content == "json" and not spec.content_args.get("string_delims")
        may_be = is_json and bool(closed.marker) and len(self._quoted) < MAX_QUOTED
        return may_be and is_in_string(body)

    def _give_up(self, opened: Opened, closed: Closed) -> Events:
        """Return a region without calls as text; what is behind its first end is read again."""
        parts = [*self._body, closed.marker]
        end = self._quoted[0] + 1 if self._quoted else len(parts)
        self._regions.read_again("".join(parts[end:]))
        yield from self._text.write(opened.marker + "".join(parts[:end]))
