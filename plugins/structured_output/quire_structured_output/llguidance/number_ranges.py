"""Bounds of numbers, so that llguidance allows the decimals within and no others.

llguidance 1.9.1 compares the digits of a number with those of a bound. This differs from a
comparison of numbers in four ways:

* Of `maximum: 99.99` it allows no number whose digits are a beginning of the bound's, 99.9. So each
  beginning is an alternative. The same holds for a `minimum` below zero.
* A decimal inside an excluded bound may be rounded to the float that is the bound: of
  `exclusiveMaximum: 1`, 0.99999999999999999. So an excluded bound becomes a closed one that is
  another float slightly inside, which is narrower: no decimal inside that one is rounded beyond it.
* A bound beyond 2**53 is compared by the shortest digits of its float, which may be farther out.
* A bound of more than 15 digits may be read as a float beside its own.

Bounds in schemas of an `allOf` become bounds of the whole, or their alternatives would multiply.
"""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, Decimal
from typing import Any

from quire_structured_output.schemas.number_keywords import MAX_EXACT
from quire_structured_output.schemas.subschemas import with_subschemas

SIDES = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
WORDS = (*SIDES, *SIDES.values())
LOWER = ("minimum", "exclusiveMinimum")
STEP_DIGITS = 10  # after the point, of the distance from an excluded bound
MORE_DIGITS = 4  # of that distance, at least, than of the bounds
FLOAT_DIGITS = 15  # that a float keeps
MAX_EXPONENT = 308  # of its powers of ten

Schema = dict[str, Any]


def with_number_ranges(schema: Any) -> Any:
    """Return a schema in normal form whose bounds of numbers are read exactly."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "integer":
        return with_subschemas(schema, with_number_ranges)
    rest, bounds = _without_bounds(schema)
    found = with_subschemas(rest, with_number_ranges)
    closed = _closed(bounds)
    more = [{"type": "number", "minimum": each, "maximum": each} for each in _beginnings(closed)]
    if not more:
        return found | closed
    return {**found, "allOf": [*found.get("allOf", ()), {"anyOf": [closed, *more]}]}


def _without_bounds(schema: Any) -> tuple[Any, Schema]:
    """Return a schema without bounds of numbers, and the strictest ones of it and its `allOf`."""
    if not isinstance(schema, dict) or schema.get("type") == "integer":
        return schema, {}
    rest = {word: value for word, value in schema.items() if word not in WORDS}
    found = [{word: value for word, value in schema.items() if word in WORDS}]
    if "allOf" in schema:
        rest["allOf"] = []
        for part in schema["allOf"]:
            part_rest, part_bounds = _without_bounds(part)
            rest["allOf"].append(part_rest)
            found.append(part_bounds)
    return rest, {
        word: (max if word in LOWER else min)(each[word] for each in found if word in each)
        for word in WORDS
        if any(word in each for each in found)
    }


def _closed(bounds: Schema) -> Schema:
    """Return bounds of which none is excluded, slightly narrower where one was."""
    digits = max((_fraction_digits(_decimal(each)) for each in bounds.values()), default=0)
    step_digits = max(STEP_DIGITS, digits + MORE_DIGITS)
    sides = [side for side, exclusive in SIDES.items() if side in bounds or exclusive in bounds]
    closed = {side: _inside(bounds, side, step_digits) for side in sides}
    if len(closed) == len(SIDES) and closed["minimum"] > closed["maximum"]:
        return {side: _inside(bounds, side, None) for side in sides}
    return closed


def _inside(bounds: Schema, side: str, step_digits: int | None) -> float:
    """Return the outermost number that the bounds of a side allow, or one slightly inside.

    Args:
        bounds: Bounds, one of this side at least.
        side: The side, by the word of its closed bound.
        step_digits: Digits of the distance from an excluded bound; None: the next float.
    """
    sign = 1 if side == "minimum" else -1
    words = [word for word in (side, SIDES[side]) if word in bounds]
    strictest = max(words, key=lambda word: (sign * bounds[word], word != side))
    bound, is_excluded = bounds[strictest], strictest != side
    near = _stepped(bound, sign, step_digits) if is_excluded else bound
    while not _is_inside(near, bound, sign, is_excluded=is_excluded):
        near = math.nextafter(near, sign * math.inf)
    return int(near) if near == int(near) else near


def _is_inside(near: float, bound: float, sign: int, *, is_excluded: bool) -> bool:
    """Return whether nothing up to a number, as llguidance reads it, is beyond a bound."""
    distance = sign * (_as_read(near) - bound)
    if abs(bound) > MAX_EXACT:  # whole, and so are the numbers near it
        distance = sign * (int(_decimal(_as_read(near))) - int(bound))
    return distance > 0 or (distance == 0 and not is_excluded)


def _as_read(value: float) -> float:
    """Return the number that llguidance reads: its parser divides the digits by a power of ten."""
    if value == int(value):
        return float(value)
    exact = _decimal(value)
    digits = _fraction_digits(exact)
    found = float(exact.scaleb(digits))
    while digits > MAX_EXPONENT:
        found /= float(f"1e{MAX_EXPONENT}")
        digits -= MAX_EXPONENT
    return found / float(f"1e{digits}")


def _stepped(bound: float, sign: int, step_digits: int | None) -> float:
    """Return a float inside an excluded bound, with few digits unless it is the next one."""
    if step_digits is not None:
        value = _decimal(bound)
        kept = max(0, FLOAT_DIGITS - 1 - value.adjusted()) if value else step_digits
        near = float(value + sign * Decimal(1).scaleb(-min(step_digits, kept)))
        if near != bound:
            return near
    return math.nextafter(bound, sign * math.inf)


def _beginnings(closed: Schema) -> list[float]:
    """Return the numbers within closed bounds whose digits are a beginning of a bound's."""
    read = {side: _as_read(bound) for side, bound in closed.items()}
    found: dict[float, None] = {}
    for side, other in (("maximum", "minimum"), ("minimum", "maximum")):
        sign = 1 if side == "maximum" else -1
        if sign * read.get(side, 0) <= 0:
            continue
        bound = _decimal(read[side])
        for digits in range(1, _fraction_digits(bound)):
            near = float(bound.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_DOWN))
            is_within = sign * near >= sign * read.get(other, near)
            if is_within and not near.is_integer() and _as_read(near) == near:
                found[near] = None
    return list(found)


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


def _fraction_digits(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
