"""Spellings of special tokens: where a text has them, and where a break keeps them from being read.

A break is a position in a text that no special token spans. So a text that a client wrote can be
part of a prompt whose other special tokens are genuine.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache

NUM_REMEMBERED = 1024  # of the shortest texts, such as roles and names of fields
MAX_REMEMBERED = 32  # characters


class SpecialSpellings:
    """The special tokens of a tokenizer as texts spell them.

    Args:
        spellings: Texts of the special tokens. Left out are single characters, which no break fits
            into, white space and plain words: no chat template separates turns with them.
    """

    def __init__(self, spellings: Collection[str]) -> None:
        kept = sorted({text for text in spellings if len(text) > 1 and _is_unlike_text(text)})
        self.spellings = sorted(kept, key=len, reverse=True)  # an alternation takes the first
        self._longest = max(map(len, kept), default=0)
        self._remembered = lru_cache(NUM_REMEMBERED)(self._are_near)

    def are_near(self, text: str) -> bool:
        """Return whether a text has a spelling, or could be part of one at an end."""
        if not self.spellings:
            return False
        is_short = len(text) <= MAX_REMEMBERED
        return self._remembered(text) if is_short else self._are_near(text)

    def _are_near(self, text: str) -> bool:
        return bool(self._at_starts(text) or self._at_ends(text) or self._search(text))

    def broken(self, text: str, mark: str) -> str:
        """Return a text with a mark at each break that it needs.

        Breaks are after the first character of each spelling, at the start of a text that begins
        with the rest of one, and at the end of a text that ends with a beginning of one; white
        space at the ends does not count, as templates may remove it.
        """
        marked = self._anywhere.sub(lambda match: match.group() + mark, text)
        if self._at_ends(text):
            end = len(marked.rstrip())
            marked = marked[:end] + mark + marked[end:]
        if self._at_starts(text):
            start = len(marked) - len(marked.lstrip())
            marked = marked[:start] + mark + marked[start:]
        return marked

    def breaks_of(self, pieces: Sequence[str]) -> tuple[int, ...]:
        """Return the ends of the pieces of a text, but the last, if a spelling spans one of them.

        Otherwise no break changes how the text is read, and there is none.
        """
        ends, length = [], 0
        for piece in pieces[:-1]:
            length += len(piece)
            ends.append(length)
        text = "".join(pieces)
        for match in self._anywhere.finditer(text) if ends else ():
            start, end = match.span(1)
            following = bisect_right(ends, start)
            if following < len(ends) and ends[following] < end:
                return tuple(ends)
        return ()

    def _at_ends(self, text: str) -> bool:
        end = text.rstrip()[-self._longest :]
        return any(end[-length:] in self._beginnings for length in range(1, len(end) + 1))

    def _at_starts(self, text: str) -> bool:
        start = text.lstrip()[: self._longest] if text[:1].isspace() else text[: self._longest]
        return any(start[:length] in self._rests for length in range(1, len(start) + 1))

    def _search(self, text: str) -> bool:
        return any(first in text for first in self._first_pairs) and bool(
            self._anywhere.search(text)
        )

    @cached_property
    def _first_pairs(self) -> frozenset[str]:
        return frozenset(text[:2] for text in self.spellings)

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        parts = (text[:end] for text in self.spellings for end in range(1, len(text)))
        return frozenset(filter(_is_unlike_text, parts))

    @cached_property
    def _rests(self) -> frozenset[str]:
        parts = (text[start:] for text in self.spellings for start in range(1, len(text)))
        return frozenset(filter(_is_unlike_text, parts))

    @cached_property
    def _anywhere(self) -> re.Pattern[str]:
        """Matches the first character of a spelling, overlapping ones too; group 1 is all of it."""
        return re.compile(f"(?=({'|'.join(map(re.escape, self.spellings)) or '(?!)'})).", re.DOTALL)


def _is_unlike_text(part: str) -> bool:
    return not part.isspace() and not part.isalnum()
