"""A pattern stands for many wordings: of each `[a|b]` in it one is taken, which may hold others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from recipe.draw import Draw, is_held_out_wording

_CHOICE = re.compile(r"\[([^\[\]]*)\]")  # one that holds no other
_WORD = re.compile(r"{\w+}|\w+")
_SMALL_WORDS = frozenset({"a", "an", "the", "our", "please", "euros", "dollars"})


def wording(draw: Draw, patterns: Sequence[str], listed: Sequence[str]) -> str:
    """A wording of one of the patterns, for training.

    It is none of the listed wordings that are kept for evaluation, nor one that differs from it
    only in signs, in capitals, or in words such as "the".
    """
    kept = _kept(tuple(listed))
    while True:
        found = expanded(draw, draw.one(patterns))
        if _core(found) not in kept:
            return found


def expanded(draw: Draw, pattern: str) -> str:
    """One of the wordings that a pattern stands for, mostly with a capital."""
    while (choice := _CHOICE.search(pattern)) is not None:
        chosen = draw.one(choice[1].split("|"))
        pattern = pattern[: choice.start()] + chosen + pattern[choice.end() :]
    if pattern[0].islower() and draw.chance(0.85):
        return pattern[0].upper() + pattern[1:]
    return pattern


@cache
def _kept(listed: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    return frozenset(_core(w) for i, w in enumerate(listed) if is_held_out_wording(i))


def _core(text: str) -> tuple[str, ...]:
    return tuple(w for w in _WORD.findall(text.lower()) if w not in _SMALL_WORDS)
