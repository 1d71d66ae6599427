"""Reasoning that stays in the content, between its markers, for models that must get it back.

The conversation goes on with what the model wrote, so the content is that text as it is. The marker
that a template has written is put before it.
"""

from quire.interfaces.reasoning import ContentDelta, ReasoningEvent, ReasoningParser
from quire_reasoning_parsers.tag_format import TagFormat
from quire_reasoning_parsers.tag_markers import markers_of


class AppendThinkParser(ReasoningParser):
    """Parser that tells whether the reasoning is open, and leaves the text as it is.

    Attributes:
        format: Format of the reasoning.
    """

    format: TagFormat

    def __init__(self, prompt_text: str = "") -> None:
        super().__init__(prompt_text)
        form = self.format
        marker, text = form.last_marker(prompt_text)
        self._is_thinking = marker in form.open
        self._before = marker + text if self._is_thinking else ""
        self._markers = markers_of(form).both
        self._held = ""  # beginning of a marker, already returned

    @property
    def is_thinking(self) -> bool:
        """Whether reasoning is open."""
        return self._is_thinking

    def feed(self, delta: str) -> list[ReasoningEvent]:
        """Return the text, with what the prompt has opened the reasoning with before it."""
        if not delta:
            return []
        self._look_for_markers(self._held + delta)
        before, self._before = self._before, ""
        return [ContentDelta(before + delta)]

    def close(self) -> list[ReasoningEvent]:
        """Return nothing: no text is held back."""
        return []

    def _look_for_markers(self, text: str) -> None:
        end = 0
        while found := self._markers.find(text, end, is_last=False):
            start, marker = found
            self._is_thinking, end = marker in self.format.open, start + len(marker)
        self._held = text[self._markers.num_certain(text, end) :]
