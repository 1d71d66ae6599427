"""The tools of `tools.toml`, half of the time under other names than their first."""

from __future__ import annotations

from recipe.draw import Draw
from recipe.tools import OPTION, Argument, Tool
from recipe.words import tables

_ALIKE = {"search_web", "find_user"}
_ENTRIES: list[dict[str, object]] = tables("tools")["tool"]


def known_tools(draw: Draw, count: int, canonical: float = 0.5) -> list[Tool]:
    """Tools of `tools.toml`, half of them under other names than their first."""
    chosen: list[dict[str, object]] = []
    for entry in draw.some(_ENTRIES, len(_ENTRIES)):
        if len(chosen) < count and not _clashes(entry, chosen):
            chosen.append(entry)
    return [_tool(draw, entry, draw.chance(canonical)) for entry in chosen]


def _tool(draw: Draw, entry: dict[str, object], canonical: bool) -> Tool:
    names, descriptions = _strings(entry["names"]), _strings(entry["descriptions"])
    arguments = entry["arguments"]
    result = entry["result"]
    assert isinstance(arguments, dict)
    assert isinstance(result, dict)
    return Tool(
        name=names[0] if canonical else draw.one(names),
        description=_description(draw, descriptions),
        arguments=(
            *(_argument(draw, keys, kind, canonical) for keys, kind in arguments.items()),
            *_option(draw, " ".join(arguments)),
        ),
        wordings=_strings(entry["wordings"]),
        result=result,
        answer=str(entry["answer"]),
    )


def _argument(draw: Draw, keys: str, kind: str, canonical: bool) -> Argument:
    names = keys.split("|")
    return Argument(names[0], names[0] if canonical else draw.one(names), kind)


def _option(draw: Draw, taken: str) -> list[Argument]:
    """Sometimes one more argument, which a call may leave out."""
    name, kind = draw.one(list(tables("tools")["options"].items()))
    if draw.chance(0.85) or name in taken:
        return []
    return [Argument(OPTION, name, kind)]


def _description(draw: Draw, descriptions: tuple[str, ...]) -> str:
    description = draw.one((*descriptions, descriptions[0], ""))
    if description.endswith(".") and draw.chance(0.15):
        return f"{description} {draw.one(tables('tools')['remarks'])}"
    return description


def _clashes(entry: dict[str, object], chosen: list[dict[str, object]]) -> bool:
    """Whether a question for this tool could as well be one for a chosen tool."""
    return any({_first_name(entry), _first_name(other)} <= _ALIKE for other in chosen)


def _first_name(entry: dict[str, object]) -> str:
    return _strings(entry["names"])[0]


def _strings(values: object) -> tuple[str, ...]:
    assert isinstance(values, list)
    return tuple(map(str, values))
