"""The question names the fields, and the answer has exactly those keys in that order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from recipe.draw import Draw
from recipe.patterns import expanded
from recipe.patterns import wording as pattern_wording
from recipe.values import Value, value
from recipe.words import tables, words

_SLOT = re.compile(r"{(\w+)}")
INSTRUCTIONS: tuple[str, ...] = tuple(tables("texts")["instructions"])
ALL_INSTRUCTIONS = (*INSTRUCTIONS, *tables("texts")["more_instructions"])
DOMAINS: list[dict[str, Any]] = tables("texts")["domain"]
FRESH_DOMAINS: list[dict[str, Any]] = tables("fresh")["domain"]


def extract(draw: Draw, text_draw: Draw | None = None) -> tuple[str, str]:
    """A question that holds a text, and the JSON it asks for.

    The text comes from the other draw where one is given, which may be on the split's other side.
    """
    source = text_draw or draw
    if _wants_listing(source):
        return _asked(draw, *_listing(source), _instruction)
    return _asked(draw, *_filled(source, *_domain_and_text(source)), _instruction)


def extract_blind(draw: Draw) -> tuple[str, str]:
    """The same in wordings of an author who had not seen those of the training."""
    written = tables("blind")
    domain, own = draw.one(list(zip(DOMAINS, written["domain"], strict=True)))
    filled = _filled(draw, domain, draw.one(own["texts"]))
    return _asked(draw, *filled, lambda draw: draw.one(written["instructions"]))


def _asked(
    draw: Draw, text: str, known: dict[str, Value], instruction: Callable[[Draw], str]
) -> tuple[str, str]:
    """A question for some of the known fields of a text, and its answer."""
    most = min(4, len(known))
    fields = draw.some(list(known), draw.integer(min(2, most), most) if draw.chance(0.85) else 1)
    question = instruction(draw).format(fields=_join(draw, fields), text=text)
    answer = {field: known[field] for field in fields}
    return question, json.dumps(answer, ensure_ascii=False)


def _instruction(draw: Draw) -> str:
    if _draws_patterns(draw) and draw.chance(0.6):
        return pattern_wording(draw, tables("texts")["instruction_patterns"], ALL_INSTRUCTIONS)
    return draw.wording(INSTRUCTIONS if draw.stage == 1 else ALL_INSTRUCTIONS)


def _draws_patterns(draw: Draw) -> bool:
    return draw.stage >= 3 and not draw.held_out_wordings


def _wants_listing(draw: Draw) -> bool:
    return not draw.held_out_wordings and draw.chance(0.12)


def _filled(draw: Draw, domain: dict[str, Any], text: str) -> tuple[str, dict[str, Value]]:
    """A text of a domain with values, and the values under one of their names each."""
    fields, text = domain["fields"], _led(draw, text)
    named = {keys.split("|")[0]: (keys.split("|"), kind) for keys, kind in fields.items()}
    slots = {slot: value(draw, named[slot][1]) for slot in dict.fromkeys(_SLOT.findall(text))}
    if draw.chance(0.05):
        slots = {s: v.lower() if isinstance(v, str) else v for s, v in slots.items()}
    known = {_field_name(draw, named[slot][0]): v for slot, v in slots.items()}
    return _among_others(draw, text.format(**slots)), known


def _domain_and_text(draw: Draw) -> tuple[dict[str, Any], str]:
    if _draws_patterns(draw) and draw.chance(0.3):
        domain = draw.one(FRESH_DOMAINS)
        return domain, expanded(draw, draw.one(domain["patterns"]))
    domain = draw.one(DOMAINS)
    texts = domain["texts"] if draw.stage == 1 else [*domain["texts"], *domain["more_texts"]]
    if _draws_patterns(draw) and draw.chance(0.6):
        return domain, pattern_wording(draw, domain["patterns"], texts)
    return domain, _clauses(draw, domain) or draw.wording(texts)


def _led(draw: Draw, text: str) -> str:
    """The text, now and then after a word or two that are not in the answer."""
    if draw.stage == 1 or draw.held_out_wordings or text.startswith('"') or draw.chance(0.8):
        return text
    first = text[0] if text.startswith(("I ", "{")) else text[0].lower()
    return f"{draw.one(tables('texts')['leads'])} {first}{text[1:]}"


def _clauses(draw: Draw, domain: dict[str, Any]) -> str | None:
    """A text put together from what can be said of the domain's subject; only while training."""
    if draw.held_out_wordings or "clauses" not in domain:
        return None
    if (draw.stage == 1 and domain.get("late")) or draw.chance(0.6):
        return None
    clauses: dict[str, list[str]] = domain["clauses"]
    chosen = draw.some(list(clauses), draw.integer(1, len(clauses)))
    said = [draw.one(clauses[field]) for field in chosen]
    subject = domain["subject"]
    if draw.chance(0.4):
        return " ".join(f"{subject} {clause}." for clause in said)
    *first, last = said
    return f"{subject} {', '.join(first)} and {last}." if first else f"{subject} {last}."


def _among_others(draw: Draw, text: str) -> str:
    """The text, now and then beside a sentence that has nothing to do with it."""
    other = draw.one(tables("texts")["asides"])
    luck = draw.rng.random()
    if luck < 0.06:
        return f"{other} {text}"
    return f"{text} {other}" if luck < 0.12 else text


def _field_name(draw: Draw, names: list[str]) -> str:
    return names[0] if draw.chance(0.6) else draw.one(names)


def _listing(draw: Draw) -> tuple[str, dict[str, Value]]:
    """Made-up keys with values of any kind, so that keys are read and not remembered."""
    kinds = ("person", "place", "count", "color", "time", "date", "name", "item", "phone", "title")
    names = (
        draw.some(words("made_up", "keys"), 3)
        if draw.chance(0.6)
        else [draw.word(2) for _ in range(3)]
    )
    known = {name: value(draw, draw.one(kinds)) for name in dict.fromkeys(names)}
    between, after = draw.one(((": ", "; "), (" is ", ", "), ("=", " "), (" ", ", ")))
    return after.join(f"{k}{between}{v}" for k, v in known.items()) + ".", known


def _join(draw: Draw, fields: list[str]) -> str:
    if draw.chance(0.3):
        return ", ".join(fields)
    *first, last = fields
    return f"{', '.join(first)} and {last}" if first else last
