"""Texts or a pattern that open or close a region of a completion."""

from collections.abc import Sequence

from quire.interfaces.markers import Markers
from quire_tool_parsers.response_template.pattern import Found, Pattern

MAX_TEXTS = 64
MAX_TEXT = 256  # characters


class Anchor:
    """What opens or closes a region: one of several texts, or a pattern.

    Args:
        texts: The texts.
        pattern: Text of the pattern, if there are no texts.

    Attributes:
        texts: The texts; empty for a pattern.
        literals: Texts in which special tokens may be.
        groups: Names of the pattern's groups.

    Raises:
        ValueError: There is an empty text, or too many; or the pattern is invalid.
    """

    def __init__(self, texts: Sequence[str], pattern: str = "") -> None:
        if len(texts) > MAX_TEXTS or any(not 0 < len(text) <= MAX_TEXT for text in texts):
            raise ValueError(f"there are at most {MAX_TEXTS} texts of 1 to {MAX_TEXT} characters")
        self.texts = tuple(dict.fromkeys(texts))
        self._markers = Markers(self.texts)
        self._pattern = Pattern.for_search(pattern) if pattern else None
        self.literals = self.texts if self._pattern is None else self._pattern.literals
        self.groups = frozenset[str]() if self._pattern is None else self._pattern.groups

    def find(
        self, text: str, start: int, *, is_last: bool, may_be_empty: bool = False
    ) -> tuple[Found | None, int]:
        """Return the first match, and the position up to which there is no other.

        The arguments are those of `Pattern.find`.
        """
        if self._pattern is not None:
            return self._pattern.find(text, start, is_last=is_last, may_be_empty=may_be_empty)
        if found := self._markers.find(text, start, is_last=is_last):
            at, marker = found
            return Found(at, at + len(marker), {}), at
        return None, len(text) if is_last else self._markers.num_certain(text, start)

    def behind_last(self, text: str) -> str:
        """Return what follows the last match in a text; the whole text if there is none."""
        at = 0
        while (found := self.find(text, at, is_last=True)[0]) is not None:
            at = found.end
        return text[at:]
