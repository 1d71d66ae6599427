"""A fact has one answer, however it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from recipe.draw import Draw
from recipe.words import tables

WORDINGS: tuple[str, ...] = tuple(tables("facts")["wordings"])


@dataclass(frozen=True)
class Fact:
    """What is asked about, how it is asked, and what is answered."""

    answer: str
    topics: tuple[str, ...]
    questions: tuple[str, ...]


FACTS = tuple(
    Fact(entry["answer"], tuple(entry.get("topics", ())), tuple(entry.get("questions", ())))
    for entry in tables("facts")["fact"]
)


def fact(draw: Draw) -> tuple[str, str]:
    """A question about quire, or a greeting, and its answer."""
    chosen = draw.one(FACTS)
    return _question(draw, chosen), chosen.answer


def _question(draw: Draw, chosen: Fact) -> str:
    own = len(chosen.questions) > (5 if draw.held_out_wordings else 0)
    if own and (not chosen.topics or draw.chance(0.3)):
        return draw.wording(chosen.questions)
    if not chosen.topics:
        return draw.wording(chosen.questions)
    return draw.wording(WORDINGS).format(topic=draw.one(chosen.topics))
