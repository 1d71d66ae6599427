"""Fragments of a format, found in the samples of its parser: markers, words and punctuation."""

import re
from collections.abc import Iterable

# A tag, a marker in square brackets, a word, a run of blanks, or one character.
_FRAGMENT = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]+\]|[^\w\s]+|[A-Z]{3,}|\w+", re.DOTALL)


def fragments_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the different fragments of texts, in the order of their first occurrence."""
    return tuple(dict.fromkeys(each for text in texts for each in _FRAGMENT.findall(text)))


def marker_places(text: str) -> list[tuple[int, int]]:
    """Return start and end of everything in a text that may be a marker, or a part of one."""
    return [found.span() for found in _MARKER.finditer(text)]
