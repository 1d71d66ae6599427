"""Bounds of numbers, so that llguidance allows the decimals within and no others.

llguidance 1.9.1 compares the digits of a number with those of a bound. It has two faults there:

* Of `maximum: 99.99` it allows no number whose digits are a beginning of the bound's, 99.9. So the
  range to each beginning is an alternative. The same holds for a `minimum` below zero.
* It forgets that a whole bound is excluded if the other one has the same whole part: of
  `exclusiveMinimum: 0` with `maximum: 0.5`. So such a bound, on the side of zero, becomes a closed
  one that is slightly inside, which is narrower.

Both bounds of a number may be in different schemas of `allOf`, so each is mended by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_DOWN, Decimal
from typing import Any

from quire_structured_output.schemas.subschemas import with_subschemas

SIDES = {"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"}
STEP_DIGITS = 10  # after the point, of the distance from an excluded bound
FLOAT_DIGITS = 15  # that a float keeps

Schema = dict[str, Any]


def with_number_ranges(schema: Any) -> Any:
    """Return a schema in normal form whose bounds of numbers are read exactly."""
    if not isinstance(schema, dict):
        return schema
    found = with_subschemas(schema, with_number_ranges)
    if schema.get("type") == "integer":
        return found
    for side, exclusive in SIDES.items():
        _close(found, side, exclusive)
    more = [{"type": "number", **each} for each in _alternatives(found)]
    if not more:
        return found
    words = (*SIDES, *SIDES.values())
    bounds = {word: found.pop(word) for word in words if word in found}
    return {**found, "allOf": [*found.get("allOf", ()), {"anyOf": [bounds, *more]}]}


def _close(schema: Schema, side: str, exclusive: str) -> None:
    """Leave the stricter of two bounds of one side; close it where its exclusion is forgotten."""
    sign = 1 if side == "minimum" else -1
    if exclusive not in schema:
        return
    if side in schema and sign * schema[side] > sign * schema[exclusive]:
        del schema[exclusive]
        return
    schema.pop(side, None)
    bound = _decimal(schema[exclusive])
    if sign * bound >= 0 and bound == bound.to_integral_value():
        del schema[exclusive]
        schema[side] = _number(bound + sign * _step(bound, schema))


def _step(bound: Decimal, schema: Schema) -> Decimal:
    """Return a distance from an excluded whole bound that floats near it can have."""
    if bound:
        digits = min(STEP_DIGITS, max(0, FLOAT_DIGITS - 1 - bound.adjusted()))
    else:
        others = [schema[word] for pair in SIDES.items() for word in pair if word in schema]
        digits = STEP_DIGITS + max((_fraction_digits(_decimal(each)) for each in others), default=0)
    return Decimal(1).scaleb(-digits)


def _alternatives(schema: Schema) -> Iterator[Schema]:
    """Yield the bounds of the ranges to numbers whose digits are a beginning of a bound's."""
    for side, exclusive in SIDES.items():
        word = exclusive if exclusive in schema else side
        if word not in schema:
            continue
        bound, sign = _decimal(schema[word]), 1 if side == "maximum" else -1
        if sign * bound <= 0:
            continue
        other = {key: schema[key] for pair in SIDES.items() if side not in pair
                 for key in pair if key in schema}  # fmt: skip
        for digits in range(1, _fraction_digits(bound)):
            near = bound.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_DOWN)
            is_within = all(sign * near > sign * _decimal(each) for each in other.values())
            if is_within and near != near.to_integral_value():
                yield {**other, side: _number(near)}


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


def _number(value: Decimal) -> float:
    return int(value) if value == value.to_integral_value() else float(value)


def _fraction_digits(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
