"""Reasoning between `<think>` and `</think>`, only at the start of a completion.

Reasoning is open from the start if the prompt ends with `<think>`, as with many chat templates.
Otherwise the completion opens it with `<think>` as its first word. A `</think>` without an opening
tag is content, because the text before it was already returned as content.

Blanks next to the tags are dropped. Reasoning that is never closed extends to the end.
"""

from collections.abc import Generator, Iterator

from quire.interfaces.reasoning import (
    ContentDelta,
    ReasoningDelta,
    ReasoningEvent,
    ReasoningParser,
)

OPEN = "<think>"
CLOSE = "</think>"
BLANKS = " \t\r\n"


class ThinkTagsParser(ReasoningParser):
    """Parser with three states: start of the completion, reasoning and content."""

    def __init__(self, prompt_text: str = "") -> None:
        super().__init__(prompt_text)
        self._is_thinking = prompt_text.rstrip(BLANKS).endswith(OPEN)
        self._is_front = True
        self._skips_blanks = self._is_thinking  # after a tag
        self._held = ""

    @property
    def is_thinking(self) -> bool:
        """Whether reasoning is open; at the start of a completion, only if the prompt opened it."""
        return self._is_thinking

    def feed(self, delta: str) -> list[ReasoningEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        return [*self._read(delta)]

    def close(self) -> list[ReasoningEvent]:
        """Return what was held back; blanks at the end of reasoning are dropped."""
        held = self._held
        if self._is_thinking:
            thought = held.strip(BLANKS) if self._is_front else held.rstrip(BLANKS)
            return [ReasoningDelta(thought)] if thought else []
        return [ContentDelta(held)] if held else []

    def _read(self, text: str) -> Iterator[ReasoningEvent]:
        text, self._held = self._held + text, ""
        if self._is_front and not self._has_passed_front(text):
            self._held = text
            return
        if self._is_front:
            text = self._pass_front(text)
        if self._is_thinking:
            text = yield from self._read_thinking(text)
        if not self._is_thinking:
            yield from self._read_content(text)

    def _has_passed_front(self, text: str) -> bool:
        """Return whether it is certain if the completion opens reasoning or not."""
        words = text.lstrip(BLANKS)
        return words.startswith(OPEN) or not OPEN.startswith(words)

    def _pass_front(self, text: str) -> str:
        """Return the text after the opening tag, or all text if there is none."""
        self._is_front = False
        words = text.lstrip(BLANKS)
        if not words.startswith(OPEN):
            return text
        self._is_thinking = self._skips_blanks = True
        return words[len(OPEN) :]

    def _read_thinking(self, text: str) -> Generator[ReasoningEvent, None, str]:
        """Yield the reasoning; return the rest."""
        if self._skips_blanks:
            text = text.lstrip(BLANKS)
        if not text:
            return ""
        thought, tag, rest = text.partition(CLOSE)
        if tag:
            self._is_thinking, self._skips_blanks = False, True
            self._held = ""
            thought = thought.rstrip(BLANKS)
        else:
            certain = _certain(text)
            thought, self._held = text[:certain], text[certain:]
        if thought:
            self._skips_blanks = not self._is_thinking
            yield ReasoningDelta(thought)
        return rest

    def _read_content(self, text: str) -> Iterator[ReasoningEvent]:
        if self._skips_blanks:
            text = text.lstrip(BLANKS)
        if text:
            self._skips_blanks = False
            yield ContentDelta(text)


def _certain(text: str) -> int:
    """Return the length of the text that cannot be part of the blanks and tag at its end."""
    end = len(text)
    for length in range(min(len(text), len(CLOSE) - 1), 0, -1):
        if CLOSE.startswith(text[-length:]):
            end -= length
            break
    return len(text[:end].rstrip(BLANKS))
