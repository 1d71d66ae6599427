"""Ranges of numbers: the decimals near the bounds are accepted exactly if they are within."""

import json
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import contract_vocabulary
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.llguidance.number_ranges import STEP_DIGITS

BACKEND = LLGuidanceBackend(contract_vocabulary())
END = BACKEND.vocabulary.eos_token_ids[0]
LOWS, HIGHS = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
WHOLE = st.sampled_from([0, 0, 1, -1, 5, 10, 99, -99, 100, -180, 65535])
FRACTIONS = st.integers(0, 5).flatmap(lambda n: st.integers(0, 10**n - 1).map(
    lambda digits: Decimal(digits).scaleb(-n)))  # fmt: skip
NUMBERS = st.builds(lambda whole, part: whole + part * (-1 if whole < 0 else 1), WHOLE, FRACTIONS)
STEPS = [Decimal(sign) * Decimal(10) ** -n * k for n in range(7) for sign in (1, -1)
         for k in (1, 5)]  # fmt: skip


def as_number(value):
    return int(value) if value == value.to_integral_value() else float(value)


def is_accepted(grammar, text):
    matcher = grammar.matcher()
    return all(matcher.accept(token) for token in [*text.encode(), END])


def near(bounds):
    """Return decimals on both sides of bounds, and the beginnings of their digits."""
    found = {Decimal(0)}
    for bound in bounds:
        found |= {bound, *(bound + step for step in STEPS)}
        text = format(bound, "f")
        found |= {Decimal(text[:n]) for n in range(1, len(text) + 1) if text[n - 1] not in "-."}
    return found


def is_within(value, schema):
    bounds = {word: Decimal(repr(bound)) for word, bound in schema.items() if word != "type"}
    return (
        value >= bounds.get("minimum", value)
        and value <= bounds.get("maximum", value)
        and ("exclusiveMinimum" not in bounds or value > bounds["exclusiveMinimum"])
        and ("exclusiveMaximum" not in bounds or value < bounds["exclusiveMaximum"])
    )


def plain(value):
    """Return the shortest text of a decimal without an exponent."""
    text = format(value.normalize(), "f")
    return "0" if text == "-0" else text


def check(schema, whole):
    try:
        grammar = BACKEND.compile(StructuredOutputsParams(json=whole))
    except GrammarError:
        assert not any(is_within(each, schema) for each in near(_bounds(schema)))
        return
    for value in near(_bounds(schema)):
        text = plain(value)
        assert is_accepted(grammar, text) == is_within(value, schema), text
        for spelling in (text + ".0", text + "0", f"-{text}", "-0", "0.0"):
            if is_accepted(grammar, spelling):
                assert is_within(Decimal(spelling), schema), spelling


def _bounds(schema):
    return [Decimal(repr(bound)) for word, bound in schema.items() if word != "type"]


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=2), st.sampled_from(LOWS), st.sampled_from(HIGHS),
       st.booleans())  # fmt: skip
@example([Decimal("99.99")], "minimum", "maximum", False)
@example([Decimal("-0.25")], "minimum", "maximum", True)
@example([Decimal(0), Decimal("0.5")], "exclusiveMinimum", "maximum", True)
@example([Decimal("-1.5"), Decimal(-1)], "minimum", "exclusiveMaximum", True)
@example([Decimal("0"), Decimal("0.00001")], "exclusiveMinimum", "exclusiveMaximum", True)
def test_decimals_near_bounds_are_accepted_exactly_if_they_are_within(bounds, low, high, is_low):
    bounds = [as_number(bound) for bound in sorted(bounds)]
    if len(bounds) == 2:
        schema = {"type": "number", low: bounds[0], high: bounds[1]}
        parts = [{low: bounds[0], "type": "number"}, {high: bounds[1]}]
        check(schema, schema)
        check(schema, {"allOf": parts})
    else:
        schema = {"type": "number", low if is_low else high: bounds[0]}
        check(schema, schema)


@pytest.mark.parametrize("value", ["a", None, [], {}])
def test_other_types_stay(value):
    grammar = BACKEND.compile(StructuredOutputsParams(json={"maximum": 3.14159}))
    assert is_accepted(grammar, json.dumps(value))


def test_of_two_bounds_of_a_side_the_stricter_one_holds():
    for low, excluded in ((2, 1.5), (1.5, 2), (2, 2)):
        schema = {"type": "number", "minimum": low, "exclusiveMinimum": excluded}
        check(schema, schema)


def test_numbers_very_near_an_excluded_whole_bound_are_not_written():
    grammar = BACKEND.compile(
        StructuredOutputsParams(json={"type": "number", "exclusiveMinimum": 5})
    )
    assert is_accepted(grammar, "5." + "0" * (STEP_DIGITS - 1) + "1")
    assert not is_accepted(grammar, "5." + "0" * STEP_DIGITS + "1")


def test_whole_numbers_and_other_properties_are_untouched():
    schema = {"type": "object", "properties": {"maximum": {"type": "integer", "minimum": 3},
              "n": {"type": "number", "maximum": 0.25}}}  # fmt: skip
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert is_accepted(grammar, '{"maximum": 3, "n": 0.2}')
    assert not is_accepted(grammar, '{"maximum": 2}')
    assert not is_accepted(grammar, '{"n": 0.26}')
