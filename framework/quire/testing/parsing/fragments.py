"""Fragments of a format, found in the samples of its parser: markers, words and punctuation."""

import re
from collections.abc import Collection, Iterable

# A tag, a marker in square brackets, a word, a run of blanks, or one character.
_FRAGMENT = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]+\]|\w+|\s+|.", re.DOTALL)
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]+\]|[^\w\s]+|[A-Z]{3,}|\w+", re.DOTALL)


def fragments_of(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the different fragments of texts, in the order of their first occurrence."""
    return tuple(dict.fromkeys(each for text in texts for each in _FRAGMENT.findall(text)))


def gaps_in(text: str, markers: Collection[str]) -> list[tuple[int, str]]:
    """Return each place between two fragments of a text, and a key: what stands beside it.

    Words have the same key, and so have runs of blanks. No place is inside a marker.
    """
    within = {
        place
        for marker in filter(None, markers)
        for found in re.finditer(re.escape(marker), text)
        for place in range(found.start() + 1, found.end())
    }
    found = [*_FRAGMENT.finditer(text)]
    keys = ["", *(_key(each.group()) for each in found), ""]
    ends = [0, *(each.end() for each in found)]
    gaps = [(end, f"{keys[i]}\0{keys[i + 1]}") for i, end in enumerate(ends)]
    return [(place, key) for place, key in gaps if place not in within]


def _key(fragment: str) -> str:
    return "word" if fragment[0].isalnum() else fragment.strip()


def marker_places(text: str) -> list[tuple[int, int]]:
    """Return start and end of everything in a text that may be a marker, or a part of one."""
    return [found.span() for found in _MARKER.finditer(text)]
