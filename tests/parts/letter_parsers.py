"""Parsers of a toy format: thinking ends at a dash, and capital letters are calls."""

from quire.interfaces.reasoning import ContentDelta, ReasoningDelta, ReasoningParser
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolParser,
)


class DashThinking(ReasoningParser):
    """Thinks until the first dash."""

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self._is_thinking = True

    @property
    def is_thinking(self):
        return self._is_thinking

    def feed(self, delta):
        if not self._is_thinking:
            return [ContentDelta(delta)]
        thought, dash, rest = delta.partition("-")
        self._is_thinking = not dash
        events = [ReasoningDelta(thought)] if thought else []
        return events + ([ContentDelta(rest)] if rest else [])

    def close(self):
        return []


class UpperCalls(ToolParser):
    """Capital letters are calls; `?` is held back; `!` is a bug."""

    def __init__(self):
        self._held = ""
        self._num_calls = 0

    def feed(self, delta):
        events = []
        for character in delta:
            events += self._read(character)
        return events

    def close(self):
        return [TextDelta(self._held)] if self._held else []

    def _read(self, character):
        if character == "!":
            raise ValueError("a bug")
        if character == "?":
            self._held += character
            return []
        if not character.isupper():
            return [TextDelta(character)]
        index, self._num_calls = self._num_calls, self._num_calls + 1
        ends = [] if character == "X" else [ToolCallEnd(index)]
        return [ToolCallStart(index, character), ToolCallArguments(index, "{}"), *ends]


class HoldingThoughts(DashThinking):
    """Holds its last letter back until the end, and may fail there."""

    error = None

    def __init__(self, prompt_text=""):
        super().__init__(prompt_text)
        self._is_thinking = prompt_text != "closed"
        self._last = ""

    def feed(self, delta):
        text, self._last = self._last + delta[:-1], delta[-1:]
        return super().feed(text) if text else []

    def close(self):
        if self.error is not None:
            raise self.error
        return super().feed(self._last) if self._last else []


class BrokenEnd(UpperCalls):
    def close(self):
        raise ValueError("a bug")
