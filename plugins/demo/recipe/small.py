"""Small skills: sums up to forty, larger or smaller, and choosing one of the words offered."""

from __future__ import annotations

from recipe.draw import Draw
from recipe.words import tables, words


def is_held_out_sum(left: int, right: int) -> bool:
    """Whether this pair of numbers is kept for evaluation: one in eight is."""
    return (left * 7 + right * 3) % 8 == 0


def small_sum(draw: Draw) -> tuple[str, str]:
    """Two numbers added or subtracted."""
    while True:
        left, right = draw.integer(0, 20), draw.integer(0, 20)
        if is_held_out_sum(left, right) == draw.held_out_names:
            break
    if draw.chance(0.35):
        left, right = max(left, right), min(left, right)
        sign, result = draw.one(("-", "minus")), left - right
    else:
        sign, result = draw.one(("+", "+", "plus")), left + right
    wording = draw.wording(tables("small")["sum"])
    return wording.format(sum=f"{left} {sign} {right}"), str(result)


def compare(draw: Draw) -> tuple[str, str]:
    """The larger of two numbers."""
    high = draw.one((9, 99, 999))
    a, b = draw.some(range(high + 1), 2)
    return draw.wording(tables("small")["compare"]).format(a=a, b=b), str(max(a, b))


def mood(draw: Draw) -> tuple[str, str]:
    """Whether a sentence is kind."""
    is_good = draw.chance(0.5)
    text = draw.one(tables("small")["mood_texts"]).format(
        noun=draw.one(words("moods", "nouns")),
        word=draw.one(words("moods", "good" if is_good else "bad")),
        name=draw.person(),
    )
    return draw.wording(tables("small")["mood"]).format(
        text=text
    ), "positive" if is_good else "negative"
