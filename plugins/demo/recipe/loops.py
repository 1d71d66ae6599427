"""In a loop a call uses what the call before it returned, in one request or in the next one."""

from __future__ import annotations

import json

from recipe.draw import Draw
from recipe.template import Message, say
from recipe.tools import Argument, Tool, ask, ask_with, drawn, result_of
from recipe.values import FREE_TEXT, NUMBERS
from recipe.words import tables

_NAMED: tuple[str, ...] = tuple(tables("chat")["named_references"])
_UNNAMED: tuple[str, ...] = tuple(tables("chat")["references"])  # where one value was returned
_JOINERS: tuple[str, ...] = tuple(tables("chat")["loop_joiners"])


def chained_turn(draw: Draw, tools: list[Tool]) -> list[Message] | None:
    """Two calls, the second with a value that the first returned; none where no tools fit."""
    pairs = [
        (first, key, second, argument)
        for first in tools
        for key, kind in first.result.items()
        for second in tools
        if second is not first
        for argument in second.arguments
        if _fits(kind, argument)
    ]
    if not pairs:
        return None
    first, key, second, argument = draw.one(pairs)
    value = drawn(draw, first.result[key])
    question, call = ask(draw, first)
    reference = draw.one(_NAMED if len(first.result) > 1 else _NAMED + _UNNAMED).format(key=key)
    asked_next = ask_with(draw, second, argument.slot, value, reference)
    if asked_next is None:
        return None
    next_question, next_call = asked_next
    found, sentence = result_of(draw, call, {key: value})
    done, last_sentence = result_of(draw, next_call, {})
    if draw.chance(0.5):
        joined = f"{question.rstrip('?')}{draw.one(_JOINERS)}{next_question}"
        between: list[Message] = []
        asked = joined
    else:
        between = [say(sentence), {"role": "user", "content": _capital(draw, next_question)}]
        asked = question
    return [
        {"role": "user", "content": _capital(draw, asked)},
        _call(call.message()),
        {"role": "tool", "content": json.dumps(found, ensure_ascii=False)},
        *between,
        _call(next_call.message()),
        {"role": "tool", "content": json.dumps(done, ensure_ascii=False)},
        say(last_sentence),
    ]


def _fits(kind: str, argument: Argument) -> bool:
    """Whether a result of this kind can be the argument."""
    if kind.startswith("=") or argument.kind.startswith("="):
        return False
    if argument.kind in NUMBERS or kind in NUMBERS:
        return kind in NUMBERS - {"price"} and argument.kind in NUMBERS - {"price"}
    if argument.kind == "email" or kind == "email":
        return kind == "email" and argument.kind in ("email", "person")
    return kind not in FREE_TEXT - {"title"} and argument.kind in ("person", "place", "name")


def _capital(draw: Draw, question: str) -> str:
    return question[0].upper() + question[1:] if draw.chance(0.65) else question


def _call(message: Message) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [message]}
