"""Constants that JSON does not have are null, however the text is cut, and strings keep theirs."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.routes.chat.strict_json import StrictJson

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_VALUES = st.recursive(
    _SCALARS | st.sampled_from(["NaN", '"-Infinity', "\\", "\\NaN"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def strict(*pieces):
    filtered = StrictJson()
    return "".join([*map(filtered.feed, pieces), filtered.close()])


def cut(text, places):
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


@given(_VALUES, st.lists(st.integers(0, 10**6), max_size=8), st.booleans())
def test_a_text_in_pieces_is_that_of_the_value_with_null_for_each_constant(value, places, is_ascii):
    text = json.dumps(value, ensure_ascii=is_ascii)
    found = strict(*cut(text, places))
    expected = json.loads(text, parse_constant=lambda _: None)
    assert json.loads(found, parse_constant=pytest.fail) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": NaN, "b": [-Infinity, Infinity]}', '{"a": null, "b": [null, null]}'),
        ('{"NaN": "a \\" NaN", "b": 1e-5}', '{"NaN": "a \\" NaN", "b": 1e-5}'),
        ("NaN", "null"),
        ("-Infinity", "null"),
        ('"\\', '"\\'),
    ],
)
def test_constants_outside_strings_are_null(text, found):
    assert strict(text) == strict(*text) == found


def test_only_what_may_be_a_constant_waits():
    filtered = StrictJson()
    assert filtered.feed('{"a": "xy') == '{"a": "xy'
    assert filtered.feed("z\\") == "z"
    assert filtered.feed('"", "b": -In') == '\\"", "b": '
    assert filtered.feed("finity}") == "null}"
