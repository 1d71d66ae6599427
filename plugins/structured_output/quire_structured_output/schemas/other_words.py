"""A regex for all strings but some words, in the syntax of the normal form."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

ANYTHING = r"[\x{0}-\x{10ffff}]"


def other_words(words: Sequence[str]) -> str:
    """Return a regex for all strings but these; it is nested as deep as the words branch."""
    first: dict[str, list[str]] = {}
    for word in words:
        if word:
            first.setdefault(word[0], []).append(word)
    chars = "".join(_char(char) for char in sorted(first))
    parts = [] if "" in words else [""]
    parts.append(f"[^{chars}]{ANYTHING}*" if chars else f"{ANYTHING}+")
    for group in first.values():
        start = _common_start(min(group), max(group))
        rest = other_words([word[len(start) :] for word in group])
        if len(start) > 1:
            parts.append(f"{_char(start[0])}(?:{_leaving(start[1:])})")
        parts.append(f"{''.join(map(_char, start))}(?:{rest})")
    return "|".join(parts)


def _common_start(first: str, second: str) -> str:
    pairs = zip(first, second, strict=False)
    length = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return first[:length]


def _leaving(word: str) -> str:
    """Return a regex for strings that end within a word, or go on otherwise; it halves the word."""
    if len(word) == 1:
        return f"|[^{_char(word)}]{ANYTHING}*"
    half = len(word) // 2
    start = "".join(map(_char, word[:half]))
    return f"{_leaving(word[:half])}|{start}(?:{_leaving(word[half:])})"


def _char(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"
