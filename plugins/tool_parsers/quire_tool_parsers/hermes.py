"""Tool calls of Hermes and Qwen: a JSON object between `<tool_call>` and `</tool_call>`.

    <tool_call>
    {"name": "find", "arguments": {"city": "Oslo"}}
    </tool_call>

A call starts when its name is complete, and its arguments are streamed character by character. If
the call breaks later, it has no end event, and all of its text follows as text. So joined text and
finished calls are the same for every split of the stream.

Blanks before a call are dropped. Blanks after one are dropped too, unless the text before the call
continues there. A call with a complete object is valid even if `</tool_call>` is missing.
"""

import json
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    SchemaPiece,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)
from quire_tool_parsers.call_object import BLANKS, CallObject

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
MAX_PART = 512  # characters; what is left of a part is copied with each step
NO_ARGUMENTS = {"type": "object", "additionalProperties": False}
COMBINING_KEYWORDS = frozenset({"$ref", "anyOf", "oneOf", "allOf"})  # refused beside `type`


class HermesToolParser(ToolParser):
    """Parser with three states: text, inside a call, and the closing tag after a call."""

    def __init__(self) -> None:
        self._blanks = ""  # after the text so far; dropped if a call follows
        self._tag = ""  # possible start of a tag
        self._has_text = False
        self._is_behind_call = False
        self._index = 0
        self._call: CallObject | None = None
        self._call_text: list[str] = []
        self._is_announced = False
        self._is_closing = False

    def feed(self, delta: str) -> list[ToolEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        return [event for part in _parts(delta) for event in _joined(self._read(part))]

    def close(self) -> list[ToolEvent]:
        """Return what was held back; an unfinished call is text."""
        return _joined(self._end())

    @classmethod
    def call_grammar(
        cls, tools: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        """Return a grammar of calls of `tools`: nothing else, or in otherwise free text.

        Raises:
            GrammarError: The parameters of a tool are not an object.
        """
        if not tools:
            return None
        shapes = tuple(_call_shape(tool) for tool in tools)
        return CallGrammar(shapes, separator="\n", triggers=() if at_least_one else (OPEN,))

    def _read(self, text: str) -> Iterator[ToolEvent]:
        while text:
            if self._call is not None:
                text = yield from self._read_call(self._call, text)
            elif self._is_closing:
                text = self._read_closing(text)
            else:
                text = yield from self._read_text(text)

    def _read_text(self, text: str) -> Generator[ToolEvent, None, str]:
        """Yield the text up to the next call; return the rest."""
        text, self._tag = self._tag + text, ""
        start = text.find("<")
        if start < 0:
            yield from self._emit_text(text)
            return ""
        yield from self._emit_text(text[:start])
        rest = text[start:]
        if rest.startswith(OPEN):
            self._begin_call()
            return rest[len(OPEN) :]
        if OPEN.startswith(rest):
            self._tag = rest
            return ""
        yield from self._emit_text("<")
        return rest[1:]

    def _emit_text(self, text: str) -> Iterator[ToolEvent]:
        """Yield text, but hold back the blanks at its end."""
        end = len(text.rstrip(BLANKS))
        if not end:
            self._blanks += text
            return
        content, self._blanks = self._blanks + text[:end], text[end:]
        if self._is_behind_call and not self._has_text:
            content = content.lstrip(BLANKS)
        self._has_text, self._is_behind_call = True, False
        yield TextDelta(content)

    def _begin_call(self) -> None:
        self._call = CallObject()
        self._call_text = [OPEN]
        self._is_announced = False

    def _read_call(self, call: CallObject, text: str) -> Generator[ToolEvent, None, str]:
        """Yield the events of a call's text; return the rest."""
        num_used = call.feed(text)
        self._call_text.append(text[:num_used])
        yield from self._emit_new(call)
        if call.is_complete:
            yield ToolCallEnd(self._index)
            self._leave_call()
            self._blanks, self._is_behind_call, self._is_closing = "", True, True
        elif call.is_broken:
            yield from self._break_call()
        return text[num_used:]

    def _emit_new(self, call: CallObject) -> Iterator[ToolEvent]:
        if call.name is None:
            return
        if not self._is_announced:
            self._is_announced = True
            yield ToolCallStart(self._index, call.name)
        if piece := call.take_arguments():
            yield ToolCallArguments(self._index, piece)

    def _break_call(self) -> Iterator[ToolEvent]:
        """Yield the text of a broken call as text."""
        text = "".join(self._call_text)
        self._leave_call()
        yield from self._emit_text(text)

    def _leave_call(self) -> None:
        self._index += self._is_announced
        self._call = None
        self._call_text = []

    def _read_closing(self, text: str) -> str:
        """Skip the closing tag if there is one; return the rest."""
        text, self._tag = self._tag + text, ""
        rest = text.lstrip(BLANKS)
        if rest.startswith(CLOSE):
            self._is_closing = False
            return rest[len(CLOSE) :]
        if CLOSE.startswith(rest):
            self._tag = text
            return ""
        self._is_closing = False
        return text

    def _end(self) -> Iterator[ToolEvent]:
        if self._is_closing:
            self._tag = ""  # an incomplete closing tag is not text
        if self._call is not None:
            yield from self._break_call()
        if self._tag:
            yield from self._emit_text(self._tag)
            self._tag = ""
        if self._blanks and not self._is_behind_call:
            yield TextDelta(self._blanks)
        self._blanks = ""


def _parts(delta: str) -> Iterator[str]:
    """Yield a delta in parts, so that the work is linear in its length."""
    return (delta[start : start + MAX_PART] for start in range(0, len(delta), MAX_PART))


def _joined(events: Iterator[ToolEvent]) -> list[ToolEvent]:
    """Return the events with adjacent text deltas joined."""
    joined: list[ToolEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + event.text)
        else:
            joined.append(event)
    return joined


def _call_shape(tool: dict[str, Any]) -> CallShape:
    name = json.dumps(tool["name"], ensure_ascii=False)
    return CallShape(
        tool["name"],
        (
            f'{OPEN}\n{{"name": {name}, "arguments": ',
            SchemaPiece(_arguments_schema(tool)),
            f"}}\n{CLOSE}",
        ),
    )


def _arguments_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the arguments, which is always one of an object."""
    parameters = tool.get("parameters")
    if parameters is None:
        return NO_ARGUMENTS
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise GrammarError(
            f"the parameters of the tool {tool['name']!r} must be a schema of type object",
            param="tools",
        )
    if parameters.keys() & COMBINING_KEYWORDS:
        return parameters
    return {"type": "object"} | parameters
