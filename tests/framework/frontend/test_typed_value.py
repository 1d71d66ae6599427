"""Values have their types, or are named by their paths; messages show them as JSON."""

import msgspec
import pytest

from quire.errors import InvalidRequestError
from quire.frontend.typed_value import convert, in_json


class Inner(msgspec.Struct):
    number: int


class Outer(msgspec.Struct):
    inner: list[Inner]


@pytest.mark.parametrize(
    ("value", "where", "param"),
    [
        ({"inner": [{"number": "1"}]}, "", "inner[0].number"),
        ({"inner": [{"number": 1}, {}]}, "", "inner[1]"),
        ({"inner": 3}, "tools[2]", "tools[2].inner"),
        (3, "tools[2]", "tools[2]"),
        (3, "", None),
    ],
)
def test_a_wrong_value_is_named_by_its_path(value, where, param):
    with pytest.raises(InvalidRequestError) as caught:
        convert(value, Outer, where)
    assert caught.value.param == param
    assert str(caught.value).startswith(f"{param}: " if param else "Expected")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        ({"type": "fünf", "a": [True]}, '{"type": "fünf", "a": [true]}'),
        ("x" * 100, '"' + "x" * 79),
        ({1, 2}, "{1, 2}"),
    ],
)
def test_a_message_shows_a_value_as_json(value, shown):
    assert in_json(value) == shown
