"""Ranges of numbers: the decimals near the bounds are accepted exactly if they are within."""

import json
import math
from decimal import Decimal, localcontext

import jsonschema
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
FLOATS = st.one_of(
    st.builds(lambda digits, exponent: float(f"{digits}e{exponent}"),
              st.integers(-10**6, 10**6), st.integers(-12, 6)),
    st.floats(-(2.0**53), 2.0**53, allow_subnormal=False).filter(lambda x: not 0 < abs(x) < 1e-12),
    st.integers(-(2**53), 2**53),
    st.integers(-(2**60), 2**60).map(lambda n: int(float(n))),
    st.sampled_from([0, 1, -1, 0.3, -0.3, 1.5, 100, 100000.5, 2**40, 2**53, -(2**53), 2**60]),
)  # fmt: skip
DIGITS = st.integers(0, 10**40 - 1).map(lambda n: f"{n:040}") | st.sampled_from(
    ["9" * 40, "0" * 39 + "1"]
)
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


def texts_near(bound, digits):
    """Return decimals of up to 40 digits that differ from a bound after some digit, or hardly."""
    exact = Decimal(bound)
    with localcontext(prec=1200):
        for count in range(1, 41, 3):
            kept = Decimal(repr(bound)) + 0
            for sign in (1, -1):
                step = Decimal(f"0.{digits}").scaleb(kept.adjusted() + 1 - count)
                yield from (format(each, "f") for each in (kept + sign * step, exact + sign * step))
        yield from (format(Decimal(each), "f") for each in (bound, repr(bound), repr(float(bound))))


def wrongly_accepted(schema, digits):
    """Return the texts near the bounds that a grammar accepts although they are invalid as read."""
    try:
        grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    except GrammarError:
        return []
    valid = jsonschema.Draft202012Validator(schema).is_valid
    bounds = [bound for word, bound in schema.items() if word != "type"]
    texts = {text for bound in bounds for text in texts_near(bound, digits)}
    with_exponents = {f"{Decimal(text):e}" for text in texts}
    return [
        text for text in texts | with_exponents
        if is_accepted(grammar, text)
        and not (valid(json.loads(text)) and valid(json.loads(text, parse_int=float)))
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=2), st.sampled_from(LOWS), st.sampled_from(HIGHS),
       st.booleans(), DIGITS)  # fmt: skip
@example([1], "minimum", "exclusiveMaximum", False, "0" * 39 + "1")
@example([0, 2**40], "minimum", "exclusiveMaximum", False, "0" * 20 + "1" * 20)
@example([2**60], "minimum", "maximum", False, "9" * 40)
@example([-(2**60)], "exclusiveMinimum", "maximum", True, "9" * 40)
@example([1e-12], "exclusiveMinimum", "exclusiveMaximum", False, "0" * 39 + "1")
def test_no_accepted_text_is_read_as_a_float_beyond_a_bound(bounds, low, high, is_low, digits):
    bounds = sorted(bounds)
    schema = {"type": "number", low if is_low else high: bounds[0]}
    if len(bounds) == 2:
        schema = {"type": "number", low: bounds[0], high: bounds[1]}
    assert not wrongly_accepted(schema, digits)


@pytest.mark.parametrize("bound", [1, -1, 0.3, -0.3, 1.5, 100, -100, 100000.5, 2**40, 2**53])
@pytest.mark.parametrize("word", ["exclusiveMinimum", "exclusiveMaximum"])
def test_a_decimal_that_is_rounded_to_an_excluded_bound_is_not_accepted(bound, word):
    schema = {"type": "number", word: bound}
    for digits in ("0" * 39 + "1", "9" * 40):
        assert not wrongly_accepted(schema, digits)
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    inwards = Decimal(1 if word == "exclusiveMinimum" else -1)
    steps = ("1e-5", "0.01", "0.5", "1") if abs(bound) < 2**40 else ("0.01", "1", "100")
    for step in steps if bound != 2**53 else ("1", "100"):
        inside = Decimal(repr(bound)) + inwards * Decimal(step)
        if float(inside) != bound:
            assert is_accepted(grammar, plain(inside)), step


def test_schemas_that_exclude_one_another_do_not_accept_what_is_rounded_to_their_bounds():
    schema = {"oneOf": [{"type": "number", "maximum": 0.5}, {"type": "number", "minimum": 0.3}]}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    zeros = "0" * 20
    for text in (f"0.2{'9' * 20}", f"0.5{zeros}1", "0.3", "0.4", "0.5"):
        assert not is_accepted(grammar, text)
    for text in ("0.2", "0.29", "0", "-7", "0.51", "0.6", "12.5"):
        assert is_accepted(grammar, text)


def test_ordinary_numbers_between_excluded_bounds_are_accepted():
    for limit in (1, 1.5, 100, 1e6):
        schema = {"type": "number", "exclusiveMinimum": -limit, "exclusiveMaximum": limit}
        grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
        assert is_accepted(grammar, "0")
        for text in ("0.1", "0.25", "0.5", "0.9", "0.99", "0.999", "0.12345678"):
            assert is_accepted(grammar, text), text
            assert is_accepted(grammar, f"-{text}"), text


def test_between_bounds_nearer_than_the_distance_there_are_numbers():
    low, high = 0.5, math.nextafter(math.nextafter(0.5, 1), 1)
    schema = {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert is_accepted(grammar, repr(math.nextafter(low, 1)))


def test_bounds_in_many_schemas_of_all_of_hold_together():
    parts = [{"exclusiveMaximum": 10 + n / 2, "exclusiveMinimum": -1 - n} for n in range(8)]
    schema = {"type": "number", "exclusiveMaximum": 12.5, "allOf": [*parts, {"allOf": parts[:3]}]}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    for text in ("9.99", "-0.99", "0", "5"):
        assert is_accepted(grammar, text), text
    for text in ("10", "-1", "10.25", "-1.5", "9." + "9" * 20):
        assert not is_accepted(grammar, text), text


@settings(max_examples=60, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: 1e-20 < abs(x) < 1e15))
@example(0.059000000000000004)
@example(-1234.0590000000000004)
def test_a_number_between_equal_bounds_is_accepted_as_it_is_or_refused(value):
    schema = {"type": "number", "minimum": value, "maximum": value}
    try:
        grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    except GrammarError:
        return
    assert is_accepted(grammar, plain(Decimal(repr(value))))


def test_a_beginning_of_a_bound_that_is_the_other_bound_is_accepted():
    schema = {"type": "number", "minimum": 0.2, "maximum": 0.29}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert is_accepted(grammar, "0.2")
    assert not is_accepted(grammar, "0.1")


@pytest.mark.parametrize("value", ["a", None, [], {}])
def test_other_types_stay(value):
    grammar = BACKEND.compile(StructuredOutputsParams(json={"maximum": 3.14159}))
    assert is_accepted(grammar, json.dumps(value))


def test_of_two_bounds_of_a_side_the_stricter_one_holds():
    for low, excluded in ((2, 1.5), (1.5, 2), (2, 2)):
        schema = {"type": "number", "minimum": low, "exclusiveMinimum": excluded}
        check(schema, schema)


@pytest.mark.parametrize(("bound", "digits"), [(5, ""), (-5, ""), (0.3, ""), (0.123456789, "1234")])
def test_numbers_very_near_an_excluded_bound_are_not_written(bound, digits):
    schema = {"type": "number", "exclusiveMinimum": bound}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    exact = Decimal(repr(bound))
    step = Decimal(1).scaleb(-(9 + len(digits) if digits else STEP_DIGITS))
    assert is_accepted(grammar, plain(exact + step))
    assert not is_accepted(grammar, plain(exact + step / 10))


def test_whole_numbers_and_other_properties_are_untouched():
    schema = {"type": "object", "properties": {"maximum": {"type": "integer", "minimum": 3},
              "n": {"type": "number", "maximum": 0.25}}}  # fmt: skip
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert is_accepted(grammar, '{"maximum": 3, "n": 0.2}')
    assert not is_accepted(grammar, '{"maximum": 2}')
    assert not is_accepted(grammar, '{"n": 0.26}')
