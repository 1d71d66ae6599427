"""A made-up tool exists in one conversation only, so that the model learns to read the list."""

from __future__ import annotations

from recipe.draw import Draw
from recipe.tools import Argument, Tool
from recipe.values import NUMBERS
from recipe.words import tables, words


def made_up_tool(draw: Draw, like: str = "") -> Tool:
    """A tool that exists in this one conversation only.

    It may share its verb or its noun with the tool whose name it is like.
    """
    verb = draw.one(words("made_up", "verbs"))
    noun = draw.one(words("made_up", "nouns")) if draw.chance(0.7) else draw.word()
    first, _, second = like.partition("_")
    if second and draw.chance(0.5):
        noun = second
    elif first in words("made_up", "verbs"):
        verb = first
    arguments = tuple(_made_up_arguments(draw))
    wordings = tables("tools")["made_up_wordings"][_shape(arguments)]
    named = {a.slot: f"{a.name} {{{a.slot}}}" for a in arguments}
    pairs = " and ".join(named.values())
    filled = tuple(
        w.replace("VERB", verb).replace("NOUN", noun).replace("PAIRS", pairs) for w in wordings
    )
    separator = draw.one(("_", "_", "_", ""))
    name = f"{verb}{separator}{noun}" if separator else f"{verb}{noun.capitalize()}"
    said = verb.capitalize()
    description = draw.one(("", f"{said} the {noun}.", f"{said} a {noun}"))
    result, answer = _made_up_result(draw, noun)
    return Tool(name, description, arguments, filled, result, answer)


def _shape(arguments: tuple[Argument, ...]) -> str:
    return "".join("n" if a.kind in NUMBERS else "s" for a in arguments)


def _made_up_arguments(draw: Draw) -> list[Argument]:
    shape = draw.one(("s", "s", "n", "sn", "ss", "ns"))
    names = (
        list(draw.some(words("made_up", "arguments"), 2))
        if draw.chance(0.7)
        else [draw.word(2), draw.word(2)]
    )
    numbers = draw.some(words("made_up", "numbers"), 2)
    return [
        Argument(f"x{i}", numbers[i] if s == "n" else names[i], "count" if s == "n" else "person")
        for i, s in enumerate(shape)
    ]


def _made_up_result(draw: Draw, noun: str) -> tuple[dict[str, str], str]:
    if draw.chance(0.4):
        return {"status": "=ok|done"}, "Done."
    other = draw.one([n for n in words("made_up", "nouns") if n != noun])
    kinds = ("count", "name", "color", "date", "count")
    if draw.chance(0.6):
        return {noun: draw.one(kinds)}, f"The {noun} is {{{noun}}}."
    both = f"The {noun} is {{{noun}}} and the {other} is {{{other}}}."
    return {noun: draw.one(kinds), other: draw.one(kinds)}, both
