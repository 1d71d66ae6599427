"""Parser for calls of the form `[[call NAME {...}]]`; a call is emitted once complete."""

import json
import re

from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    SchemaPiece,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)

OPEN, CLOSE = "[[call ", "]]"
SHORT = {"string": {"pattern": "[a-z]{1,8}"}}


class AcmeCalls(ToolParser):
    """Parser of text up to `[[call `, then a name and JSON up to the `]]` that completes it."""

    def __init__(self):
        self._held = ""
        self._num_calls = 0

    def feed(self, delta):
        """Return the events that are certain by now."""
        self._held += delta
        events = []
        while OPEN in self._held:
            events += self._text(self._held.index(OPEN))
            call = self._call()
            if not call:
                return events
            events += call
        return events + self._text(len(self._held) - self._prefix_length())

    def close(self):
        """Return the rest as text: an unfinished call is text."""
        return self._text(len(self._held))

    @classmethod
    def call_grammar(cls, tools, *, at_least_one):
        """Return the grammar of one call."""
        if not at_least_one:
            return None
        return CallGrammar(tuple(_shape(tool) for tool in tools))

    def _text(self, length):
        text, self._held = self._held[:length], self._held[length:]
        return [TextDelta(text)] if text else []

    def _call(self):
        """Return the events of a complete call and remove it; nothing if it is not complete."""
        for end in re.finditer(re.escape(CLOSE), self._held):
            name, _, arguments = self._held[len(OPEN) : end.start()].partition(" ")
            if name and _is_object(arguments):
                self._held = self._held[end.end() :]
                index, self._num_calls = self._num_calls, self._num_calls + 1
                start, piece = ToolCallStart(index, name), ToolCallArguments(index, arguments)
                return [start, piece, ToolCallEnd(index)]
        return []

    def _prefix_length(self):
        """Return the length of the end that may be the start of a call."""
        lengths = range(min(len(OPEN) - 1, len(self._held)), 0, -1)
        return next((n for n in lengths if self._held.endswith(OPEN[:n])), 0)


def _is_object(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _shape(tool):
    """Return the shape of a call of the tool: short strings of letters, and all arguments."""
    parameters = tool.get("parameters", {})
    fields = {
        name: field | SHORT.get(field.get("type"), {})
        for name, field in parameters.get("properties", {}).items()
    }
    schema = parameters | {"type": "object", "properties": fields, "required": list(fields)}
    return CallShape(tool["name"], (f"{OPEN}{tool['name']} ", SchemaPiece(schema), CLOSE))
