"""Search for markers in a text that arrives in pieces, for parsers of tool calls and reasoning.

A marker at the end of a piece may be cut, so a text that could become one is not certain yet. Of
markers that begin at the same position the longest counts; one that could become a longer marker
counts only once what follows it is there.
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
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._longest = max(map(len, texts), default=0)
        firsts = "".join(sorted({re.escape(text[0]) for text in texts}))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")

    def find(self, text: str, start: int = 0, *, is_last: bool) -> tuple[int, str] | None:
        """Return the position of the first marker, and the marker; None if there is none yet.

        Args:
            text: Text to search.
            start: Position in it from which on.
            is_last: Whether nothing follows the text.
        """
        found = self._pattern.search(text, start)
        if found is None or (not is_last and self.num_certain(text, start) <= found.start()):
            return None
        return found.start(), found.group()

    def at_start(self, text: str, start: int = 0) -> str | None:
        """Return the marker that a text begins with, if any; from a position on, if one is given.

        With positions, no text is copied for each marker in it.
        """
        found = self._pattern.match(text, start)
        return None if found is None else found.group()

    def may_begin(self, text: str, start: int = 0) -> bool:
        """Whether a text is the beginning of a marker, and more text could make it one."""
        return len(text) - start < self._longest and text[start:] in self._beginnings

    def num_certain(self, text: str, start: int = 0) -> int:
        """Return the length of a text without the beginning of a marker at its end."""
        at = max(start, len(text) - self._longest + 1)
        while (found := self._first.search(text, at)) is not None:
            if text[found.start() :] in self._beginnings:
                return found.start()
            at = found.end()
        return len(text)
