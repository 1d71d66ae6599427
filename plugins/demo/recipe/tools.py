"""A tool is data; one function asks for it, and the call's arguments are what the question said.

Where the tools come from is not its business: see `known.py` and `made_up.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from recipe.draw import Draw
from recipe.template import Message, Schema
from recipe.values import FREE_TEXT, NUMBERS, Value, value

_SLOT = re.compile(r"{(\w+)}")
_FLOATS = frozenset({"price"})
OPTION = "option"  # the slot of an argument that a call may leave out


@dataclass(frozen=True)
class Argument:
    """A slot in the wordings, the name the schema gives it, and its kind of value."""

    slot: str
    name: str
    kind: str

    @property
    def type(self) -> str:
        """The JSON type of its values."""
        if self.kind in _FLOATS:
            return "number"
        return "integer" if self.kind in NUMBERS else "string"


@dataclass(frozen=True)
class Tool:
    """One function a prompt offers, and how people ask for it."""

    name: str
    description: str
    arguments: tuple[Argument, ...]
    wordings: tuple[str, ...]
    result: Mapping[str, str]
    answer: str

    def schema(self) -> Schema:
        """The tool in OpenAI's shape."""
        properties = {a.name: _property(a) for a in self.arguments}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function: Schema = {"name": self.name}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": parameters}}


@dataclass(frozen=True)
class Call:
    """A question's request for one tool, with the values it names."""

    tool: Tool
    slots: Mapping[str, Value]

    def message(self) -> Message:
        """The call as an entry of `tool_calls`."""
        arguments = {
            a.name: self.slots[a.slot] for a in self.tool.arguments if a.slot in self.slots
        }
        return {"type": "function", "function": {"name": self.tool.name, "arguments": arguments}}


def ask(draw: Draw, tool: Tool) -> tuple[str, Call]:
    """A question that needs this tool once, and the call it needs."""
    wording = draw.wording(tool.wordings)
    if not draw.held_out_wordings and draw.chance(0.08):
        wording = _by_names(draw, tool)
    wording = _with_option(draw, tool, wording)
    wanted = set(_SLOT.findall(wording))
    slots = {a.slot: drawn(draw, a.kind) for a in tool.arguments if a.slot in wanted}
    if draw.chance(0.06):
        slots = {s: v.lower() if isinstance(v, str) else v for s, v in slots.items()}
    if "to" in slots and "from" in slots:
        while slots["to"] == slots["from"]:
            slots["to"] = drawn(draw, "currency")
    return wording.format(**slots), Call(tool, slots)


def ask_with(draw: Draw, tool: Tool, slot: str, value: Value, said: str) -> tuple[str, Call] | None:
    """A question that refers to a value in other words, and the call with the value itself.

    None if no wording ends with the slot, where such words fit.
    """
    ends = ("{" + slot + "}", "{" + slot + "}?")
    wordings = [w for w in draw.side(tool.wordings) if w.endswith(ends) and not w.startswith("{")]
    if not wordings:
        return None
    wording = draw.one(wordings)
    wanted = set(_SLOT.findall(wording))
    slots = {a.slot: drawn(draw, a.kind) for a in tool.arguments if a.slot in wanted}
    return wording.format(**{**slots, slot: said}), Call(tool, {**slots, slot: value})


def respond(draw: Draw, call: Call) -> tuple[str, str]:
    """What the tool returns, and the sentence that says it."""
    if draw.chance(0.15):
        plain = draw.one((_phrase, _measure))(draw)
        return plain, f"The result is: {plain}"
    if draw.chance(0.1):
        value_ = draw.integer(0, 999) if draw.chance(0.5) else draw.name()
        return json.dumps({"result": value_}, ensure_ascii=False), f"The result is {value_}."
    result, sentence = result_of(draw, call, {})
    return json.dumps(result, ensure_ascii=False), sentence


def result_of(draw: Draw, call: Call, given: Mapping[str, Value]) -> tuple[dict[str, Value], str]:
    """What the tool returns, with the values that are given, and the sentence that says it."""
    result = {
        key: given[key] if key in given else drawn(draw, kind)
        for key, kind in call.tool.result.items()
    }
    return result, call.tool.answer.format(**{**call.slots, **result})


def ends_in_free_text(tool: Tool, wording_slots: Mapping[str, Value], question: str) -> bool:
    """Whether the question ends with words that are copied, so that nothing may follow them."""
    kinds = {a.slot: a.kind for a in tool.arguments}
    return any(
        question.endswith(str(v)) and (kinds[s] in FREE_TEXT or kinds[s] in ("person", "place"))
        for s, v in wording_slots.items()
    )


def _by_names(draw: Draw, tool: Tool) -> str:
    pairs = [f"{a.name} {draw.one(('', '', '= ', 'is '))}{{{a.slot}}}" for a in tool.arguments]
    joined = draw.one((" and ", ", ")).join(pairs)
    return draw.one((f"use {tool.name} with {joined}", f"call {tool.name}, {joined}"))


def _with_option(draw: Draw, tool: Tool, wording: str) -> str:
    """The wording, now and then with a value for the argument that a tool can do without."""
    option = next((a for a in tool.arguments if a.slot == OPTION), None)
    if option is None or OPTION in wording or wording.endswith("}") or draw.chance(0.6):
        return wording
    ways = [f"with {option.name} {{{OPTION}}}", f"and {option.name} {{{OPTION}}}"]
    if option.kind.startswith("="):
        ways.append(f"in {{{OPTION}}}")
    mark = "?" if wording.endswith("?") else ""
    return f"{wording.rstrip('?')} {draw.one(ways)}{mark}"


def drawn(draw: Draw, kind: str) -> Value:
    """A value of a kind, or one of those that the kind lists itself."""
    return draw.one(kind[1:].split("|")) if kind.startswith("=") else value(draw, kind)


def _property(argument: Argument) -> Schema:
    if argument.kind.startswith("="):
        return {"type": "string", "enum": argument.kind[1:].split("|")}
    return {"type": argument.type}


def _phrase(draw: Draw) -> str:
    return str(value(draw, "text"))


def _measure(draw: Draw) -> str:
    units = ("degrees", "meters", "people", "euros", "percent", "minutes")
    return f"{draw.integer(1, 99)} {draw.one(units)}, {draw.one(('sunny', 'good', 'late', 'full'))}"
