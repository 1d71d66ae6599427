"""Removal of special tokens' texts from a text that arrives in pieces."""

import re
from collections.abc import Collection


class MarkerRemover:
    """Removes some texts, and holds back what may become one of them.

    Args:
        markers: Texts to remove, at least one.
    """

    def __init__(self, markers: Collection[str]) -> None:
        longest_first = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._starts = frozenset(text[:end] for text in markers for end in range(1, len(text)))
        self._longest = len(longest_first[0])
        self._held = ""

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that is certain by now."""
        text, kept, start = self._held + piece, list[str](), 0
        for found in self._pattern.finditer(text):
            if text[found.start() :] in self._starts:  # it may become a longer one
                break
            kept.append(text[start : found.start()])
            start = found.end()
        certain = self._num_certain(text[start:]) + start
        self._held = text[certain:]
        return "".join((*kept, text[start:certain]))

    def close(self) -> str:
        """Return what was held back."""
        held, self._held = self._held, ""
        return held

    def _num_certain(self, text: str) -> int:
        """Return the length of a text without the beginning of a marker at its end."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if text[-length:] in self._starts:
                return len(text) - length
        return len(text)
