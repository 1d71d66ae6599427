"""Of an object whose text breaks off, the members that are complete are there."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.routes.chat.complete_members import complete_members

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("", "{}"),
        ("{", "{}"),
        (' {"a"', " {}"),
        ('{"a": 1', "{}"),
        ('{"a": 12,', '{"a": 12}'),
        ('{"a": tru', "{}"),
        ('{"a": true}', '{"a": true}'),
        ('{"a": "x', "{}"),
        (r'{"a": "x\"', "{}"),
        (r'{"a": "x\\"', r'{"a": "x\\"}'),
        ('{"a": "x", "b": [1, {"c": "d", "e', '{"a": "x", "b": [1, {"c": "d"}]}'),
        ('{"a": {}', '{"a": {}}'),
        ('{"a": "}', "{}"),
        ('["a", "b', "{}"),
        ("nonsense", "{}"),
        ('{"a": nonsense, "b"', "{}"),
        ('{"a":' * 9000, "{}"),
    ],
)
def test_what_is_not_complete_is_left_out(text, members):
    assert complete_members(text) == members


def is_part(part, whole):
    """Whether a value is the beginning of another."""
    if isinstance(part, dict) and isinstance(whole, dict):
        beginning = [*whole.items()][: len(part)]
        pairs = zip(part.items(), beginning, strict=True)
        return all(key == name and is_part(a, b) for (key, a), (name, b) in pairs)
    if isinstance(part, list) and isinstance(whole, list):
        beginning = whole[: len(part)]
        return all(is_part(a, b) for a, b in zip(part, beginning, strict=True))
    return part == whole


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans(), st.data())
def test_the_members_are_those_of_the_whole(value, is_ascii, data):
    indent = data.draw(st.sampled_from([None, 1]))
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    at = data.draw(st.integers(0, len(text)))
    assert is_part(json.loads(complete_members(text[:at])), value)
    assert complete_members(text) == text
