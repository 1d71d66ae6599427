"""Search for markers in a text that arrives in pieces.

A marker at the end of a piece may be cut, so a text that could become one is not certain yet. Of
markers that begin at the same place the longest counts.
"""

import re
from collections.abc import Collection


class Markers:
    """Texts that are searched for.

    Args:
        texts: The texts.
    """

    def __init__(self, texts: Collection[str]) -> None:
        longest_first = sorted({*texts}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest = max(map(len, texts), default=0)

    def find(self, text: str, *, is_last: bool) -> tuple[int, int] | None:
        """Return start and end of the first marker; None if there is none, or it is not certain.

        Args:
            text: Text to search.
            is_last: Whether nothing follows the text.
        """
        found = self._pattern.search(text)
        if found is None or (not is_last and self.may_begin(text[found.start() :])):
            return None
        return found.span()

    def at_start(self, text: str) -> str:
        """Return the marker that a text begins with; empty if there is none."""
        found = self._pattern.match(text)
        return "" if found is None else found.group()

    def may_begin(self, text: str) -> bool:
        """Whether a text is the beginning of a marker, and more text could make it one."""
        return text in self._beginnings

    def num_certain(self, text: str) -> int:
        """Return the length of a text without the beginning of a marker at its end."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if text[-length:] in self._beginnings:
                return len(text) - length
        return len(text)
