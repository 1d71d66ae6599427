"""The opening of the assistant's turn: what a chat template writes behind the conversation.

It may open or close the model's reasoning. A conversation can have the same markers, so they are
looked for in this part of the prompt only. It is found by comparison: a prompt without the start of
the assistant's turn is what the opening comes after. That costs a second rendering, so openings are
remembered.
"""

from collections.abc import Callable, Hashable
from threading import Lock

from quire.errors import ChatTemplateError
from quire.frontend.chat.templates.final_message import END_MARK

MAX_KNOWN = 64  # openings of a template
MAX_CHARACTERS = 4096  # of an opening that is remembered


def opening_of(
    prompt: str, render_without: Callable[[], str], render_marked: Callable[[], str]
) -> str:
    """Return the end of a prompt that the template wrote behind the conversation.

    Args:
        prompt: Rendered prompt.
        render_without: Function that renders it without the start of the assistant's turn.
        render_marked: Function that renders it with a mark behind the last text. It is called if a
            template writes the same with and without the start.
    """
    without = _rendered(render_without)
    if without and without != prompt:
        return prompt[_common_length(prompt, without) :]
    _, mark, opening = _rendered(render_marked).rpartition(END_MARK.strip())
    opening = opening.removeprefix(" ")
    return opening if mark and prompt.endswith(opening) else ""


class KnownOpenings:
    """The openings that a template has written so far, by what it was given but the conversation.

    An opening that a prompt ends with is that of the prompt, too: openings begin with markup that
    starts a turn, so none is the end of another.
    """

    def __init__(self) -> None:
        self._openings: dict[Hashable, str] = {}
        self._lock = Lock()

    def find(self, given: Hashable, prompt: str) -> str | None:
        """Return the opening of a prompt; None if it is not known.

        Args:
            given: What the template was given: of a small size.
            prompt: Rendered prompt.
        """
        opening = self._openings.get(given)
        return opening if opening and prompt.endswith(opening) else None

    def add(self, given: Hashable, opening: str) -> None:
        """Remember an opening in place of the oldest one; a long one is not remembered."""
        if len(opening) > MAX_CHARACTERS:
            return
        with self._lock:
            self._openings.pop(given, None)
            while len(self._openings) >= MAX_KNOWN:
                del self._openings[next(iter(self._openings))]
            self._openings[given] = opening


def _rendered(render: Callable[[], str]) -> str:
    """Return a rendered prompt; empty if the template refuses it."""
    try:
        return render()
    except ChatTemplateError:
        return ""


def _common_length(text: str, other: str) -> int:
    """Return the length of the text that two texts begin with."""
    if text.startswith(other):
        return len(other)
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
