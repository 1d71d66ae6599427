"""A text ends at the stop string that is complete first; what may begin one is held back.

If two are complete at the same character, the longer one counts. So the outcome depends on the
text alone, not on how it was cut into tokens.
"""

from collections.abc import Sequence


class StopStrings:
    """Looks for stop strings in a text that arrives in pieces.

    Args:
        stops: The strings; none of them empty.
        include_in_output: Keep the stop string in the text.

    Attributes:
        found: The stop string that ended the text, if one did.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        self.found: str | None = None
        self._stops = tuple(stops)
        self._include = include_in_output
        self._max_held = max(map(len, stops), default=1) - 1
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece; return what is certain not to be part of a stop string."""
        if not text or self.found is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        if (match := self._first_match(text)) is not None:
            start, end = match
            self.found, self._held = text[start:end], ""
            return text[:end] if self._include else text[:start]
        num_held = self._num_held(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def close(self) -> str:
        """Return what was held back: it was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        matches = []
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0:
                matches.append((start + len(stop), start))
        if not matches:
            return None
        end, start = min(matches)
        return start, end

    def _num_held(self, text: str) -> int:
        """Return the length of the longest end of the text that a stop string begins with."""
        for length in range(min(len(text), self._max_held), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
