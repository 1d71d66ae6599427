"""A value has a kind, and the kind alone decides how it looks and whether it is a number."""

from __future__ import annotations

from collections.abc import Callable

from recipe.draw import Draw
from recipe.words import words

Value = str | int | float


def text(draw: Draw) -> str:
    """Something to say: a phrase, or a subject and what is the matter with it."""
    if draw.chance(0.3):
        return _word(draw, "phrases")
    subject = _word(draw, "subjects") if draw.chance(0.75) else f"the {draw.word()}"
    return f"{subject} {_word(draw, 'predicates')}"


def query(draw: Draw) -> str:
    """Something to look for."""
    topic = _word(draw, "topics") if draw.chance(0.7) else draw.word()
    return f"{topic} in {draw.place()}" if draw.chance(0.3) else topic


def task(draw: Draw) -> str:
    """Something to do."""
    if draw.chance(0.7):
        return _word(draw, "tasks")
    return f"{draw.one(('buy', 'call', 'clean', 'find', 'fix', 'visit'))} the {draw.word()}"


def item(draw: Draw) -> str:
    """Something to buy."""
    return _word(draw, "items") if draw.chance(0.7) else draw.word()


def title(draw: Draw) -> str:
    """One or two made-up words, each with a capital."""
    return " ".join(draw.name() for _ in range(draw.integer(1, 2)))


def time(draw: Draw) -> str:
    """A time of day in one of three forms."""
    if draw.chance(0.6):
        return f"{draw.integer(0, 23)}:{draw.integer(0, 59):02}"
    return f"{draw.integer(1, 12)} {draw.one(('am', 'pm'))}"


def date(draw: Draw) -> str:
    """A date in one of three forms."""
    day, month = draw.integer(1, 28), draw.integer(1, 12)
    month_name = words("values", "months")[month - 1]
    if draw.chance(0.4):
        return f"{draw.integer(2024, 2032)}-{month:02}-{day:02}"
    if draw.chance(0.5):
        return f"{day} {month_name}"
    return f"{month_name} {day}"


def day(draw: Draw) -> str:
    """A day by its name, or a date."""
    return _word(draw, "days") if draw.chance(0.5) else date(draw)


def expression(draw: Draw) -> str:
    """A sum in signs, of two or three numbers."""
    high = draw.one((9, 99, 999))
    numbers = [str(draw.integer(1, high)) for _ in range(draw.one((2, 2, 2, 3)))]
    return f" {draw.one('+-*/')} ".join(numbers)


def price(draw: Draw) -> Value:
    """A whole amount, or one with two decimals whose last is not zero."""
    if draw.chance(0.7):
        return draw.integer(1, 999)
    return draw.integer(0, 99) + (draw.integer(0, 9) * 10 + draw.integer(1, 9)) / 100


def phone(draw: Draw) -> str:
    """Digits in two groups."""
    return f"{draw.integer(100, 999)}-{draw.integer(1000, 9999)}"


def email(draw: Draw) -> str:
    """A made-up address."""
    return f"{draw.word(2)}@{draw.word(2)}.{draw.one(('com', 'org', 'net', 'io'))}"


KINDS: dict[str, Callable[[Draw], Value]] = {
    "person": Draw.person,
    "place": Draw.place,
    "name": Draw.name,
    "word": Draw.word,
    "title": title,
    "text": text,
    "query": query,
    "task": task,
    "item": item,
    "time": time,
    "date": date,
    "day": day,
    "expression": expression,
    "price": price,
    "phone": phone,
    "email": email,
    "few": lambda draw: draw.integer(1, 12),
    "count": lambda draw: draw.integer(1, draw.one((20, 100, 1000))),
    "age": lambda draw: draw.integer(1, 99),
    "year": lambda draw: draw.integer(1900, 2035),
    "number": lambda draw: draw.integer(100, 99999),
    "job": lambda draw: _word(draw, "jobs"),
    "color": lambda draw: _word(draw, "colors"),
    "room": lambda draw: _word(draw, "rooms"),
    "language": lambda draw: _word(draw, "languages"),
    "currency": lambda draw: _word(draw, "currencies"),
    "event": lambda draw: _word(draw, "events"),
}
NUMBERS = frozenset({"few", "count", "age", "year", "number", "price"})
FREE_TEXT = frozenset({"text", "query", "task", "item", "title"})


def value(draw: Draw, kind: str) -> Value:
    """A value of this kind."""
    return KINDS[kind](draw)


def _word(draw: Draw, kind: str) -> str:
    return draw.one(words("values", kind))
