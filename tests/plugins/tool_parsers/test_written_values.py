"""A text becomes the first kind of value that its types allow; otherwise it stays a string."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_tool_parsers.argument_types import ANY_TYPE
from quire_tool_parsers.written_values import json_or_string, json_text, may_become_null


def text_of(text, types):
    return json_text(text, frozenset(types.split()))


@pytest.mark.parametrize(
    ("text", "types", "written"),
    [
        ("null", "null string", "null"),
        ("None", "null", "null"),
        (" null\n", "null integer", "null"),
        ("none", "null string", '"none"'),
        ("null", "string", '"null"'),
        ("123", "string", '"123"'),
        ("123", "string integer", "123"),
        ("1", "integer number boolean string", "1"),
        ("1", "boolean", "true"),
        ("0", "boolean", "false"),
        ("True", "boolean", "true"),
        ("false", "boolean string", "false"),
        ("yes", "boolean", '"yes"'),
        (" 7 ", "integer", "7"),
        ("+7", "integer", "7"),
        ("-7", "integer", "-7"),
        ("007", "integer", "7"),
        ("-0", "integer", "0"),
        ("5.0", "integer", "5"),
        ("5.5", "integer", '"5.5"'),
        ("5.5", "number", "5.5"),
        ("1.10", "number", "1.10"),
        ("-74.0", "number", "-74.0"),
        ("1E5", "number", "1E5"),
        (".5", "number", "0.5"),
        ("5.", "number", "5"),
        ("1_000", "number", '"1_000"'),
        ("٣", "integer number", '"٣"'),
        ("1e999", "number", '"1e999"'),
        ("-1e999", "number", '"-1e999"'),
        ("NaN", "number", '"NaN"'),
        ("inf", "number", '"inf"'),
        ("-Infinity", "integer number", '"-Infinity"'),
        ("9" * 400, "number", "9" * 400),
        ("9" * 30, "integer", "9" * 30),
        ('{"a": [1, 1.10, "\\u00e9"]}', "object", '{"a": [1, 1.10, "\\u00e9"]}'),
        ('{"a": "x\ny"}', "object", '{"a": "x\\ny"}'),
        ('{"a": 1, "a": 2}', "object", '{"a": 2}'),
        ("{'a': True, 'b': None}", "object", '{"a": true, "b": null}'),
        ('["a", (1, 2)]', "array", '["a", [1, 2]]'),
        ('{"a": 1e999}', "object", '{"a": "1e999"}'),
        ('{"a": NaN}', "object", '{"a": "NaN"}'),
        ("[1, 2]", "object", '"[1, 2]"'),
        ('{"a": 1} and', "object", '"{\\"a\\": 1} and"'),
        ("__import__('os')", "object array", "\"__import__('os')\""),
        ("[__import__('os')]", "object array", "\"[__import__('os')]\""),
        ('{"a": "\\ud800"}', "object", '{"a": "\\ud800"}'),
        ("  two  words ", "string", '"  two  words "'),
        ("", "integer null string", '""'),
    ],
)
def test_the_first_kind_of_value_counts(text, types, written):
    assert text_of(text, types) == written


def test_values_nested_very_deeply_stay_text():
    for text in ("[" * 100_000, "[" * 5000 + "]" * 5000):
        assert text_of(text, "array") == json.dumps(text)


@pytest.mark.parametrize(
    ("text", "written"),
    [("5", "5"), ('"a"', '"a"'), (" [1] ", "[1]"), ("null", "null"), ("Oslo", '"Oslo"'),
     ("NaN", '"NaN"'), ('{"a": 1, "a": 2}', '"{\\"a\\": 1, \\"a\\": 2}"'), ("", '""')],
)  # fmt: skip
def test_what_is_declared_as_json_and_is_none_is_a_string(text, written):
    assert json_or_string(text) == written


def test_a_beginning_of_a_null_may_become_one():
    assert all(may_become_null(text) for text in ("", " ", "n", "nul", "null", "None ", "NU"))
    assert not any(may_become_null(text) for text in ("x", "nulls", "null x", " " * 65))
    assert text_of(" " * 65 + "null", "null string") == json.dumps(" " * 65 + "null")


@given(st.text(st.characters(codec="utf-8")), st.sets(st.sampled_from(sorted(ANY_TYPE))))
def test_any_text_becomes_json_that_can_be_sent(text, types):
    written = json_text(text, frozenset(types))
    assert not any("\ud800" <= character <= "\udfff" for character in written)
    value = json.loads(written)
    if isinstance(value, str):
        assert value == text
