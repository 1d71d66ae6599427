"""Search for the markers of a format in a text that arrives in pieces.

Of markers that begin at the same place the longest counts. So one that could become a longer marker
counts only if what follows it is there.
"""

import re
from collections.abc import Collection


class Markers:
    """Texts that are searched for.

    Args:
        texts: The texts.
    """

    def __init__(self, texts: Collection[str]) -> None:
        self.texts = frozenset(texts)
        longest_first = sorted(self.texts, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if texts else None
        self._starts = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest = max(map(len, texts), default=0)

    def find(self, text: str, start: int = 0, *, is_last: bool) -> tuple[int, str] | None:
        """Return the place of the first marker, and the marker; None if there is none yet.

        Args:
            text: Text to search.
            start: Place in it from which on.
            is_last: Whether nothing follows the text.
        """
        if self._pattern is None or (found := self._pattern.search(text, start)) is None:
            return None
        if not is_last and text[found.start() :] in self._starts:
            return None
        return found.start(), found.group()

    def at_start(self, text: str) -> str | None:
        """Return the marker that a text begins with, if any."""
        if self._pattern is None or (found := self._pattern.match(text)) is None:
            return None
        return found.group()

    def may_begin(self, text: str) -> bool:
        """Whether a text is the beginning of a marker, and more text could make it one."""
        return text in self._starts

    def num_certain(self, text: str) -> int:
        """Return the length of a text without the beginning of a marker at its end."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if text[-length:] in self._starts:
                return len(text) - length
        return len(text)
