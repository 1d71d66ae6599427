"""Reasoning between two markers, as a `TagFormat` describes it.

The reasoning is open from the start if the last marker of the prompt opens it. Otherwise the
completion opens it with its first word. A closing marker without an opening one is content, because
the text before it was already returned as content; only at the start it is dropped.

Blanks next to the markers are dropped. Reasoning that is never closed extends to the end.
"""

from collections.abc import Iterator
from typing import ClassVar

from quire.interfaces.markers import Markers
from quire.interfaces.reasoning import (
    ContentDelta,
    ReasoningDelta,
    ReasoningEvent,
    ReasoningParser,
)
from quire_reasoning_parsers.tag_format import TagFormat

BLANKS = " \t\r\n"
MAX_BLANKS = 64  # that are dropped before a marker, so that no more are held back
BETWEEN_PARTS = "\n"  # of reasoning that was closed and opened again

Events = Iterator[ReasoningEvent]


class TagParser(ReasoningParser):
    """Parser with four states: reasoning and content, each with its start.

    Attributes:
        format: Format of the reasoning.
    """

    format: ClassVar[TagFormat]

    def __init__(self, prompt_text: str = "") -> None:
        super().__init__(prompt_text)
        form = self.format
        self._openers, self._closers = Markers(form.open), Markers(form.close)
        self._front = Markers({*form.open, *form.close, *form.wrapper_open})
        self._ends = self._openers if form.opens_anywhere else None  # of the content
        self._buffer = ""
        self._needs_more = False
        self._drops_blanks = False  # at the start of the content
        self._has_reasoning = False
        self._separator = ""
        self._is_thinking = False
        self._label = form.label
        self._state = self._start_content
        self._go_on(*form.last_marker(prompt_text))

    @property
    def is_thinking(self) -> bool:
        """Whether reasoning is open; at the start of a completion, only if the prompt opened it."""
        return self._is_thinking

    def feed(self, delta: str) -> list[ReasoningEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        self._buffer += delta
        return [*self._run(is_last=False)]

    def close(self) -> list[ReasoningEvent]:
        """Return what was held back; blanks at the end of reasoning are dropped."""
        return [*self._run(is_last=True)]

    def _go_on(self, marker: str, text: str) -> None:
        """Begin where a prompt ends.

        Args:
            marker: Last marker of the prompt.
            text: Text that follows it.
        """
        self._pass(marker)
        words = text.strip(BLANKS)
        if words and self._is_thinking and words == self._label:
            self._label = ""
        elif words:
            self._state = self._read_reasoning if self._is_thinking else self._read_content
        self._drops_blanks = False

    def _pass(self, marker: str) -> None:
        """Go on behind a marker."""
        form = self.format
        self._is_thinking = marker in form.open
        self._state = self._start_reasoning if self._is_thinking else self._start_content
        self._drops_blanks = True
        if self._is_thinking:
            self._label = form.label
            self._separator = BETWEEN_PARTS if self._has_reasoning else ""
        elif marker in form.wrapper_open:
            self._ends = Markers(form.wrapper_close)
        elif marker in form.wrapper_close:
            self._ends = self._openers if form.opens_anywhere else None

    def _run(self, *, is_last: bool) -> Events:
        self._needs_more = False
        while self._buffer and not self._needs_more:
            yield from self._state(is_last)

    def _start_content(self, is_last: bool) -> Events:
        """Read the markers before the content."""
        rest = self._buffer.lstrip(BLANKS)
        num_blanks = len(self._buffer) - len(rest)
        if self._drops_blanks:
            self._buffer, num_blanks = rest, 0
        is_far = num_blanks > MAX_BLANKS
        if not (is_last or is_far) and (not rest or self._front.may_begin(rest)):
            self._needs_more = True
        elif not is_far and (marker := self._front.at_start(rest)):
            self._buffer = rest[len(marker) :]
            self._pass(marker)
        else:
            self._state = self._read_content
        yield from ()

    def _start_reasoning(self, is_last: bool) -> Events:
        """Drop blanks, the label and a second opening marker."""
        self._buffer = rest = self._buffer.lstrip(BLANKS)
        if not is_last and self._is_uncertain(rest):
            self._needs_more = True
        elif marker := self._openers.at_start(rest):
            self._buffer = rest[len(marker) :]
        elif self._label and self._begins_with_label(rest):
            self._buffer, self._label = rest[len(self._label) :], ""
        else:
            self._state = self._read_reasoning
        yield from ()

    def _is_uncertain(self, rest: str) -> bool:
        """Whether the start of the reasoning may be the beginning of a marker or a label."""
        if self._openers.may_begin(rest) or self._label.startswith(rest):
            return True
        has_label = bool(self._label) and rest.startswith(self._label)
        return has_label and self._closers.may_begin(rest[len(self._label) :])

    def _begins_with_label(self, rest: str) -> bool:
        """Whether the label is the first line, or all there is."""
        following = rest[len(self._label) :]
        is_line = following[:1] in ("", "\r", "\n") or bool(self._closers.at_start(following))
        return is_line and rest.startswith(self._label)

    def _read_reasoning(self, is_last: bool) -> Events:
        text = self._take_until(self._closers, is_last)
        if is_last and self._is_thinking:
            text = text[: _end_of_words(text)]
        if text:
            yield ReasoningDelta(self._separator + text)
            self._separator, self._has_reasoning = "", True

    def _read_content(self, is_last: bool) -> Events:
        if self._ends is None:
            text, self._buffer = self._buffer, ""
        else:
            text = self._take_until(self._ends, is_last)
        if text:
            yield ContentDelta(text)

    def _take_until(self, markers: Markers, is_last: bool) -> str:
        """Take the certain text before the next marker, and the marker if it is there."""
        text = self._buffer
        if found := markers.find(text, is_last=is_last):
            start, marker = found
            self._buffer = text[start + len(marker) :]
            self._pass(marker)
            return text[: _end_of_words(text[:start])]
        self._needs_more = True
        certain = len(text) if is_last else _end_of_words(text[: markers.num_certain(text)])
        self._buffer = text[certain:]
        return text[:certain]


def _end_of_words(text: str) -> int:
    """Return the length of a text without the blanks at its end that are held back."""
    return max(len(text.rstrip(BLANKS)), len(text) - MAX_BLANKS)
