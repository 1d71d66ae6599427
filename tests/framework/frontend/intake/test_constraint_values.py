"""A constraint's values are JSON of a bounded size, whatever a program gives."""

import re
import time

import pytest

from quire.call_grammar import CallGrammar
from quire.errors import GrammarError
from quire.frontend.intake.constraint_values import check_values
from quire.frontend.json_limits import MAX_DEPTH, MAX_VALUES
from quire.sampling_params import StructuredOutputsParams


def nested(depth):
    schema = {"type": "null"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


cycle: dict = {}
cycle["items"] = cycle
wide: list = []
for _ in range(60):
    wide = [wide, wide]  # 2**60 values


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"enum": [1, {2}]}, "the value at /enum/1 is a set"),
        ({"const": b"a"}, "the value at /const is a bytes"),
        ({"properties": {3: {}}}, "a name at /properties is a int, not text"),
        ({"minimum": float("nan")}, "the number at /minimum is nan"),
        ({"minimum": float("-inf")}, "the number at /minimum is -inf"),
        ({"minimum": 2**63}, "the whole number at /minimum of json has more than 64 bits"),
        ({"const": "\ud800"}, "the text at /const of json is not valid Unicode"),
        ({"enum": {"\ud800": 1}}, "the text at /enum of json is not valid Unicode"),
        (nested(MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} deep"),
        (nested(100_000), f"nested more than {MAX_DEPTH} deep"),
        (cycle, f"nested more than {MAX_DEPTH} deep"),
        ({"enum": wide}, "too large"),
        ({"enum": list(range(MAX_VALUES + 1))}, "too large"),
        ({"enum": ["a" * 2**19] * 3}, "too large"),
        ({"a" * (2**20 + 1): 1}, "too large"),
    ],
)
def test_what_is_not_json_or_too_large_is_refused_with_its_place(schema, message):
    began = time.monotonic()
    with pytest.raises(GrammarError, match=re.escape(message)):
        check_values(StructuredOutputsParams(json=schema))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "fields",
    [
        {"json": nested(MAX_DEPTH - 1)},
        {"json": {"enum": [1, 2.5, None, True, "é", {"a": []}], "minimum": -(2**63)}},
        {"json_object": True},
        {"choice": ("a", "é")},
        {"structural_tag": {"format": {}}},
        {"calls": CallGrammar(())},
    ],
)
def test_json_is_accepted(fields):
    check_values(StructuredOutputsParams(**fields))


def test_text_that_is_not_unicode_is_refused_in_every_constraint():
    for fields in ({"regex": "\ud800"}, {"choice": ("a", "\ud800")}, {"grammar": "\ud800"}):
        with pytest.raises(GrammarError, match="not valid Unicode"):
            check_values(StructuredOutputsParams(**fields))
