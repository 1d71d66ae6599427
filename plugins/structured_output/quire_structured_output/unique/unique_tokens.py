"""The tokens that may repeat an item of a unique array, found without a look at all the others.

Of a large vocabulary few tokens can do harm: those that go along the text of an earlier item, and
those that end an item and go on behind it. The first are found in the sorted vocabulary, the
second are listed beforehand by what they hold.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from quire_structured_output.unique.unique_text import digits

OUTSIDE, IN_STRING, ESCAPED = range(3)
NUMBER_STARTS = frozenset(b"0123456789-")
_GOES_ON = rb"[,\]}0-9-]"  # what ends an item and goes on, or begins a number
_IN_STRING = re.compile(rb'".*' + _GOES_ON, re.DOTALL)
_STRING_END = re.compile(rb'(?:[^"\\]|\\.)*"', re.DOTALL)
_OUTSIDE = re.compile(
    rb'[ ]?(?:(?:"[^"]*"|[:\[{]).*' + _GOES_ON + rb"|[tfnaelrsu]*[ ]?[,\]}]|[0-9-])", re.DOTALL
)
_IN_NUMBER = re.compile(rb"[0-9.eE+-]*(?:[ ]|[ ]?[,\]}].*)?", re.DOTALL)
_WHOLE = re.compile(rb"\[.*,", re.DOTALL)  # may hold several items of an array


class UniqueTokens:
    """The tokens of a vocabulary, by what they may do to a unique array.

    Args:
        tokens: Bytes -> ids of the tokens with these bytes.

    Attributes:
        ids: The same.
        tails: What follows the end of a string -> tokens that end one and go on so.
        odd: Tokens with a quote and a backslash, which ends the string if it is escaped.
        outside: Tokens that may end an item, or begin a number, where no string is open.
        in_number: Tokens that may end a number.
        whole: Tokens that may hold several items of an array.
    """

    def __init__(self, tokens: Mapping[bytes, Sequence[int]]) -> None:
        self.ids = tokens
        self._sorted = sorted(tokens)
        self.tails: dict[bytes, list[bytes]] = {}
        self.odd: list[bytes] = []
        for token in self._sorted:
            if b'"' in token and _IN_STRING.search(token):
                self._note_tail(token)
        others = [token for token in self._sorted if not token.isdigit()]
        self.outside = [token for token in others if _OUTSIDE.match(token)]
        self.in_number = [token for token in others if _IN_NUMBER.fullmatch(token)]
        self.whole = [token for token in self._sorted if _WHOLE.search(token)]
        self._by_digits: dict[bytes, list[bytes]] = {}
        self._by_first_digits: dict[bytes, list[bytes]] = {}
        for token in filter(bytes.isdigit, self._sorted):
            self._by_digits.setdefault(token.strip(b"0"), []).append(token)
            self._by_first_digits.setdefault(token.rstrip(b"0"), []).append(token)

    def _note_tail(self, token: bytes) -> None:
        """Note what a token has after the end of a string."""
        if b"\\" in token:
            self.odd.append(token)
        if found := _STRING_END.match(token):
            self.tails.setdefault(token[found.end() :], []).append(token)

    def along(self, texts: Sequence[bytes], depth: int, mode: int) -> Iterator[bytes]:
        """Yield the tokens that go along texts, and perhaps beyond their ends.

        Args:
            texts: Sorted texts without blanks; a token may have one wherever JSON may.
            depth: Number of bytes of the texts that have been written.
            mode: Whether the next byte is outside of strings, in one, or escaped.
        """
        waiting = [_Walk(b"", 0, len(self._sorted), 0, len(texts), depth, mode)] if texts else []
        while waiting:
            walk = waiting.pop()
            if walk.depth == len(texts[walk.first]):  # an item ends: what follows repeats it
                yield from self._sorted[walk.low : walk.high]
                continue
            if walk.token and self._sorted[walk.low] == walk.token:
                yield walk.token
            if walk.mode == OUTSIDE and walk.token + b" " in self.ids:
                yield walk.token + b" "
            waiting += self._next(walk, texts)

    def digits_along(self, raw: bytes, numbers: set[bytes]) -> Iterator[bytes]:
        """Yield the tokens of digits that go along the digits of a number, at any power of ten.

        Args:
            raw: What is written of the number.
            numbers: Digits of the numbers, without zeros at their ends.
        """
        begun = digits(raw, is_begun=True)
        by_digits = self._by_first_digits if begun else self._by_digits
        for number in numbers:
            if number.startswith(begun):
                rest = number[len(begun) :]
                for size in range(len(rest) + 1):
                    yield from by_digits.get(rest[:size], ())
            elif number.startswith(begun.rstrip(b"0")):
                yield from by_digits.get(b"", ())

    def _next(self, walk: _Walk, texts: Sequence[bytes]) -> Iterator[_Walk]:
        first, depth = walk.first, walk.depth
        while first < walk.last:
            octet = texts[first][depth]
            prefix = texts[first][: depth + 1]
            last = bisect_left(texts, prefix + b"\xff", first, walk.last)
            if walk.mode != OUTSIDE or octet not in NUMBER_STARTS:
                mode = _mode_after(walk.mode, octet)
                blanks = (b"", b" ") if walk.mode == OUTSIDE else (b"",)
                for blank in blanks:
                    token = walk.token + blank + bytes([octet])
                    low, high = self._range(token, walk.low, walk.high)
                    if low < high:
                        yield _Walk(token, low, high, first, last, depth + 1, mode)
            first = last

    def _range(self, prefix: bytes, low: int, high: int) -> tuple[int, int]:
        """Return where the tokens with a prefix are, in a part of the sorted vocabulary."""
        low = bisect_left(self._sorted, prefix, low, high)
        while prefix.endswith(b"\xff"):
            prefix = prefix[:-1]
        after = prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None
        return low, high if after is None else bisect_left(self._sorted, after, low, high)


@dataclass(frozen=True, slots=True)
class _Walk:
    """A beginning of tokens, and the texts that it goes along."""

    token: bytes
    low: int  # of the tokens that begin so
    high: int
    first: int  # of the texts that go on so
    last: int
    depth: int  # of the texts
    mode: int


def _mode_after(mode: int, octet: int) -> int:
    if mode == OUTSIDE:
        return IN_STRING if octet == b'"'[0] else OUTSIDE
    if mode == ESCAPED:
        return IN_STRING
    return {b'"'[0]: OUTSIDE, b"\\"[0]: ESCAPED}.get(octet, IN_STRING)
