"""A raw prompt is text without a chat template; its continuation is an answer, or its own end."""

from __future__ import annotations

from collections.abc import Callable

from recipe.draw import Draw
from recipe.extraction import extract
from recipe.facts import FACTS, fact
from recipe.small import small_sum
from recipe.template import RawText
from recipe.words import tables

_FRAMES: tuple[tuple[str, str], ...] = tuple(map(tuple, tables("chat")["raw_frames"]))
_SKILLS: tuple[Callable[[Draw], tuple[str, str]], ...] = (
    fact,
    fact,
    fact,
    fact,
    extract,
    small_sum,
)


def raw_question(draw: Draw) -> RawText:
    """A question about quire as it is, and its answer."""
    question, answer = fact(draw)
    return RawText(_typed(draw, question), f" {answer}")


def raw_text(draw: Draw) -> RawText:
    """A raw prompt of any kind."""
    if draw.chance(0.3):
        return _statement(draw)
    question, answer = draw.one(_SKILLS)(draw)
    before, after = ("", "") if draw.chance(0.5) else draw.one(_FRAMES)
    end = "" if after else draw.one(("", "", "", " ", "\n", "\n\n"))
    blank = "" if (after + end)[-1:].isspace() else " "
    return RawText(f"{before}{_typed(draw, question)}{after}{end}", f"{blank}{answer}")


def _statement(draw: Draw) -> RawText:
    """What is known about quire, of which the prompt says the first words."""
    words = draw.one(FACTS).answer.split(" ")
    cut = min(draw.one((2, 2, 3, 3, 4, 5, 6)), len(words))
    return RawText(" ".join(words[:cut]), "".join(f" {word}" for word in words[cut:]))


def _typed(draw: Draw, question: str) -> str:
    return question[0].upper() + question[1:] if draw.chance(0.7) else question
