"""All integers within the bounds are allowed, and no others."""

import random
import re

import pytest

from quire.errors import GrammarError
from quire_structured_output.outlines.integer_range import integers
from quire_structured_output.outlines.json_schema import schema_regex

EDGES = [None, -1000, -101, -100, -99, -10, -9, -1, 0, 1, 7, 9, 10, 11, 89, 99, 100, 101, 999, 1234]


def matches(expression, number):
    return re.fullmatch(expression, str(number)) is not None


@pytest.mark.parametrize("low", EDGES)
def test_bounds_are_kept_exactly(low):
    for high in EDGES:
        if low is not None and high is not None and low > high:
            continue
        expression = integers(low, high)
        for number in range(-1300, 1500):
            within = (low is None or number >= low) and (high is None or number <= high)
            assert matches(expression, number) == within, (low, high, number)
        assert not matches(expression, "-0")
        assert not matches(expression, "007")


def test_large_bounds_are_kept_at_their_edges():
    rng = random.Random(0)
    for _ in range(200):
        low, high = sorted(rng.randint(-(2**53), 2**53) for _ in range(2))
        expression = integers(low, high)
        inside = [low, high, rng.randint(low, high), rng.randint(low, high)]
        assert all(matches(expression, number) for number in inside)
        assert not matches(expression, low - 1)
        assert not matches(expression, high + 1)


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        ({"minimum": 1, "maximum": 3}, [1, 2, 3]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2]),
        ({"minimum": 0.5, "maximum": 2.5}, [1, 2]),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 2.5}, [1, 2]),
        ({"minimum": 1, "exclusiveMinimum": 1, "maximum": 4, "exclusiveMaximum": 4}, [2, 3]),
        ({"minimum": 2, "exclusiveMinimum": 0, "maximum": 3, "exclusiveMaximum": 9}, [2, 3]),
        ({"minimum": -1, "exclusiveMinimum": -3, "maximum": 0}, [-1, 0]),
    ],
)
def test_each_keyword_bounds_whole_numbers(bounds, allowed):
    expression = schema_regex({"type": "integer"} | bounds).expression
    assert [n for n in range(-20, 20) if matches(expression, n)] == allowed


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no integer satisfies the bounds"),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "no integer satisfies"),
        ({"type": "integer", "minimum": "1"}, "'minimum' at / must be a number"),
        ({"type": "integer", "maximum": 2**60}, "'maximum' at / beyond"),
        ({"type": "number", "minimum": 1}, "'minimum' at / for numbers that are not integers"),
        ({"type": ["integer", "number"], "maximum": 1}, "'maximum' at / for numbers"),
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(schema, reason):
    with pytest.raises(GrammarError) as caught:
        schema_regex(schema)
    assert reason in str(caught.value)
