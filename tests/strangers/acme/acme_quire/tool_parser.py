"""Parser for calls of the form `[[call NAME {...}]]`; a call is emitted once complete."""

import json

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
    """Parser of text up to `[[call `, then a name and JSON up to the `]]` behind it."""

    def __init__(self):
        self._held = []  # characters of a call, or of what may begin one
        self._is_in_call = False
        self._num_calls = 0

    def feed(self, delta):
        """Return the events that are certain by now."""
        return [event for character in delta for event in self._read(character)]

    def close(self):
        """Return the rest as text: an unfinished call is text."""
        return self._release(len(self._held))

    @classmethod
    def call_grammar(cls, tools, *, at_least_one):
        """Return the grammar of one call."""
        if not at_least_one:
            return None
        return CallGrammar(tuple(_shape(tool) for tool in tools))

    def _read(self, character):
        self._held.append(character)
        if self._is_in_call:
            return self._call() if self._ends_call(character) else []
        held = "".join(self._held)
        if held == OPEN:
            self._is_in_call, self._is_in_string, self._is_escaped = True, False, False
            self._depth, self._num_closers = 0, 0
        lengths = range(len(held))
        return self._release(next((n for n in lengths if OPEN.startswith(held[n:])), len(held)))

    def _ends_call(self, character):
        """Tell whether a character is the second bracket behind the JSON."""
        if self._is_in_string:
            self._is_in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
            return False
        self._is_in_string = character == '"'
        self._depth += (character == "{") - (character == "}")
        self._num_closers = self._num_closers + 1 if character == "]" else 0
        return self._num_closers == len(CLOSE) and self._depth <= 0

    def _call(self):
        """Return the events of what is between `[[call ` and `]]`; text if it is no call."""
        self._is_in_call = False
        name, _, arguments = "".join(self._held)[len(OPEN) : -len(CLOSE)].partition(" ")
        if not name or not _is_object(arguments):
            return self._release(len(self._held))
        self._held.clear()
        index, self._num_calls = self._num_calls, self._num_calls + 1
        return [ToolCallStart(index, name), ToolCallArguments(index, arguments), ToolCallEnd(index)]

    def _release(self, length):
        text, self._held = "".join(self._held[:length]), self._held[length:]
        return [TextDelta(text)] if text else []


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
