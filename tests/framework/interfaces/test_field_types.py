"""Types of request fields that are more than a number."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequestError, PluginError
from quire.interfaces.field_types import (
    FieldType,
    FieldVocabulary,
    ListOf,
    OneOf,
    Text,
    TokenMap,
    TokenSet,
    TokenTexts,
)
from quire.interfaces.sampling import RequestField

V = 40
VOCABULARY = FieldVocabulary(V, lambda text: [ord(c) % V for c in text])
TYPES = {
    "one": (OneOf(("off", "low")), "off"),
    "text": (Text(8), ""),
    "floats": (ListOf(float, 3, 0.0, 1.0), []),
    "ints": (ListOf(int, 3), []),
    "bools": (ListOf(bool, 3), []),
    "choices": (ListOf(OneOf(("a", "b")), 3), []),
    "map": (TokenMap(3, -1.0, 1.0), {}),
    "set": (TokenSet(), []),
    "texts": (TokenTexts(2, max_tokens=3), []),
    "words": (TokenTexts(2, rule="word"), []),
}


def field_of(kind):
    return RequestField("field", *TYPES[kind])


def resolve(kind, value):
    field = field_of(kind)
    return field.resolve(field.check(value), VOCABULARY)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("one", "high"), ("one", 0), ("one", None), ("one", ["off"]),
        ("text", "123456789"), ("text", "ééééé"), ("text", "\ud800"), ("text", 1), ("text", b"a"),
        ("floats", [0.0] * 4), ("floats", [1.5]), ("floats", [float("nan")]), ("floats", ["1"]),
        ("floats", [True]), ("floats", "0.5"), ("floats", {0.5: 1}), ("floats", None),
        ("floats", [10**5000]),
        ("ints", [2**31]), ("ints", [-(2**31) - 1]), ("ints", [1.0]), ("ints", [True]),
        ("bools", [1]), ("choices", ["c"]),
        ("map", {V: 0.5}), ("map", {-1: 0.5}), ("map", {True: 0.5}), ("map", {"x": 0.5}),
        ("map", {"1": 0.5, 1: 0.5}), ("map", {"²": 0.5}), ("map", {2**63: 0.5}),
        ("map", [[1, 0.5]]),
        ("map", {1: 2.0}), ("map", {1: float("inf")}), ("map", {1: None}), ("map", {1.0: 0.5}),
        ("map", dict.fromkeys(range(4), 0.5)), ("map", {"1" * 5000: 0.5}),
        ("set", [V]), ("set", [-1]), ("set", [True]), ("set", [1.0]), ("set", [0] * (V + 1)),
        ("set", 1), ("set", "ab"), ("set", [[1]]),
        ("texts", ["abcd"]), ("texts", [""]), ("texts", ["a", "b", "c"]), ("texts", [1]),
        ("texts", "ab"), ("words", [" "]), ("words", ["x" * 257]),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_the_name_of_its_field(kind, value):
    with pytest.raises(InvalidRequestError, match="field") as caught:
        resolve(kind, value)
    assert caught.value.param == "field"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("kind", "value", "resolved"),
    [
        ("one", "low", "low"), ("text", "éa", "éa"), ("floats", [1, -0.0], [1.0, 0.0]),
        ("ints", (2**31 - 1,), [2**31 - 1]), ("choices", ["b", "b"], ["b", "b"]),
        ("map", {"7": 1, 0: -1}, {7: 1.0, 0: -1.0}), ("set", [9, 3, 9], [3, 9]),
        ("texts", ["ab", "ab"], [[17, 18]]),
    ],
)  # fmt: skip
def test_a_right_value_is_converted(kind, value, resolved):
    assert resolve(kind, value) == resolved
    assert field_of(kind).check(TYPES[kind][1]) == TYPES[kind][1], "the default"


class Counted(list):
    """A list that counts how often it is iterated."""

    def __iter__(self):
        raise AssertionError("copied before its length was checked")


@pytest.mark.parametrize("kind", ["floats", "ints", "bools", "choices", "set", "texts", "words"])
def test_a_list_that_is_too_long_is_not_copied(kind):
    with pytest.raises(InvalidRequestError, match="has 41 items; it takes at most"):
        resolve(kind, Counted([0] * 41))


def test_a_word_is_tokenized_at_the_start_and_after_a_blank():
    ids = {"ab": [1, 2], " ab": [3, 2], "c": [4], " c": [5, 4], "d": [6], " d": [6]}
    field = RequestField("field", TokenTexts(4, rule="word"), [])
    found = field.resolve(field.check([" ab", "c", "d"]), FieldVocabulary(V, ids.__getitem__))
    assert found == [[1, 2], [3, 2], [4], [6]], "as many tokens, and another first one"


def test_the_last_token_of_a_text_is_that_after_a_letter():
    field = RequestField("field", TokenTexts(4, rule="last"), [])
    assert field.resolve(["\n", "b:"], VOCABULARY) == [[10], [58 - V]]


@pytest.mark.parametrize(
    ("kind", "value", "cells"),
    [
        ("one", "low", ([1],)), ("text", "é", (b"\xc3\xa9", [2])),
        ("choices", ["b", "a"], ([1, 0], [2])), ("map", {7: 0.5}, ([0.5], [7], [1])),
        ("set", [0, 31, 33], ((-(2**31) + 1, 2), [3])), ("set", [], ((), [0])),
        ("texts", [[1, 2], [3]], ([1, 2, 0, 3, 0, 0], [2, 1], [2])),
    ],
)  # fmt: skip
def test_cells_are_what_the_columns_hold(kind, value, cells):
    type_ = TYPES[kind][0]
    assert type_.cells(value, V) == cells
    assert len(type_.columns(V)) == len(cells)


@given(kind=st.sampled_from(sorted(TYPES)), data=st.data())
def test_any_value_is_refused_by_name_or_fits_its_columns(kind, data):
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9),
        st.sampled_from([V, V - 1, 2**63, -0.0, "a", "low"]),
    )  # fmt: skip
    value = data.draw(
        leaves | st.lists(leaves, max_size=5) | st.dictionaries(leaves, leaves, max_size=5)
    )
    type_: FieldType = TYPES[kind][0]
    try:
        resolved = resolve(kind, value)
    except InvalidRequestError as error:
        assert error.param == "field"  # noqa: PT017 - or it is right
        return
    for column, cells in zip(type_.columns(V), type_.cells(resolved, V), strict=True):
        size = 1
        for side in column.shape:
            size *= side
        assert len(cells) <= size
        low, high = (-3.5e38, 3.5e38) if column.is_float else (-(2**31), 2**31 - 1)
        assert all(low <= cell <= high for cell in cells)
    as_json = {str(k): v for k, v in value.items()} if isinstance(value, dict) else value
    as_json = list(as_json) if isinstance(as_json, tuple) else as_json
    jsonschema.validate(as_json, field_of(kind).json_schema())


def test_the_schema_of_every_type_is_a_schema_with_the_default():
    for kind, (_, default) in TYPES.items():
        schema = field_of(kind).json_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(default, schema)
        assert schema["default"] == default
    number = RequestField("field", float, 0.5, 0.0, help="What it does.")
    assert number.json_schema() == {
        "type": "number", "minimum": 0.0, "default": 0.5, "description": "What it does.",
    }  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: OneOf(()), lambda: OneOf(("a", "a")), lambda: Text(0), lambda: ListOf(str, 3),
        lambda: ListOf(int, True), lambda: TokenMap(10**6), lambda: TokenTexts(9, rule="tokens"),
        lambda: TokenTexts(60000, max_tokens=2), lambda: RequestField("a.b", int, 0),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_at_once(make):
    with pytest.raises(PluginError):
        make()
