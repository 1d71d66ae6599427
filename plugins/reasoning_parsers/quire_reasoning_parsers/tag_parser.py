"""Reasoning between two markers, as a `TagFormat` describes it.

The reasoning is open from the start if the last marker of the prompt opens it. Otherwise the
completion opens it with its first word. A closing marker without an opening one is content, because
the text before it was already returned as content; only at the start it is dropped.

Blanks next to the markers are dropped. Reasoning that is never closed extends to the end.
"""

import re
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
from quire_reasoning_parsers.tag_markers import markers_of

BLANKS = " \t\r\n"
MAX_BLANKS = 64  # that are dropped before a marker, so that no more are held back
BETWEEN_PARTS = "\n"  # of reasoning that was closed and opened again

_BLANKS = re.compile(f"[{BLANKS}]*")

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
        self._markers = markers_of(form)
        self._ends = self._markers.content_ends
        self._text, self._at = "", 0  # read up to there
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
        self._text, self._at = self._text[self._at :] + delta, 0
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
            self._ends = self._markers.wrapped_ends
        elif marker in form.wrapper_close:
            self._ends = self._markers.content_ends

    def _run(self, *, is_last: bool) -> Events:
        self._needs_more = False
        while self._at < len(self._text) and not self._needs_more:
            yield from self._state(is_last)

    def _start_content(self, is_last: bool) -> Events:
        """Read the markers before the content."""
        text, at = self._text, self._end_of_blanks()
        if self._drops_blanks:
            self._at = at
        is_far = at - self._at > MAX_BLANKS
        is_uncertain = at == len(text) or self._markers.front.may_begin(text, at)
        if is_uncertain and not (is_last or is_far):
            self._needs_more = True
        elif not is_far and (marker := self._markers.front.at_start(text, at)):
            self._at = at + len(marker)
            self._pass(marker)
        else:
            self._state = self._read_content
        yield from ()

    def _start_reasoning(self, is_last: bool) -> Events:
        """Drop blanks, the label and a second opening marker."""
        self._at = at = self._end_of_blanks()
        if not is_last and self._is_uncertain(at):
            self._needs_more = True
        elif marker := self._markers.openers.at_start(self._text, at):
            self._at += len(marker)
        elif self._label and self._is_label(at):
            self._at += len(self._label)
            self._label = ""
        else:
            self._state = self._read_reasoning
        yield from ()

    def _end_of_blanks(self) -> int:
        found = _BLANKS.match(self._text, self._at)
        return self._at if found is None else found.end()

    def _is_uncertain(self, at: int) -> bool:
        """Whether the start of the reasoning may be the beginning of a marker or a label."""
        text, label = self._text, self._label
        if len(text) - at <= len(label) and label.startswith(text[at:]):
            return True
        has_label = bool(label) and text.startswith(label, at)
        return self._markers.openers.may_begin(text, at) or (
            has_label and self._markers.closers.may_begin(text, at + len(label))
        )

    def _is_label(self, at: int) -> bool:
        """Whether the label is the first line, or all there is."""
        end = at + len(self._label)
        is_line = self._text[end : end + 1] in ("", "\r", "\n") or bool(
            self._markers.closers.at_start(self._text, end)
        )
        return is_line and self._text.startswith(self._label, at)

    def _read_reasoning(self, is_last: bool) -> Events:
        text = self._take_until(self._markers.closers, is_last)
        if is_last and self._is_thinking:
            text = text[: _end_of_words(text, 0, len(text))]
        if text:
            yield ReasoningDelta(self._separator + text)
            self._separator, self._has_reasoning = "", True

    def _read_content(self, is_last: bool) -> Events:
        if self._ends is None:
            text, self._at = self._text[self._at :], len(self._text)
        else:
            text = self._take_until(self._ends, is_last)
        if text:
            yield ContentDelta(text)

    def _take_until(self, markers: Markers, is_last: bool) -> str:
        """Take the certain text before the next marker, and the marker if it is there."""
        text, at = self._text, self._at
        if found := markers.find(text, at, is_last=is_last):
            start, marker = found
            self._at = start + len(marker)
            self._pass(marker)
            return text[at : _end_of_words(text, at, start)]
        self._needs_more = True
        certain = markers.num_certain(text, at)
        self._at = len(text) if is_last else _end_of_words(text, at, certain)
        return text[at : self._at]


def _end_of_words(text: str, start: int, end: int) -> int:
    """Return where the blanks at the end of a part of a text begin that are held back."""
    least = max(start, end - MAX_BLANKS)
    return least + len(text[least:end].rstrip(BLANKS))
