"""Literals in Python's notation become the JSON of the same value, and nothing is evaluated."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_tool_parsers.python_reader import python_value


@pytest.mark.parametrize(
    ("literal", "written"),
    [
        ("None", "null"),
        ("true", "true"),
        ("False", "false"),
        ("-74.0", "-74.0"),
        ("+5", "5"),
        ("1_000", "1000"),
        ("0x1F", "31"),
        ("0o17", "15"),
        ("-0b11", "-3"),
        ("1e-5", "1e-5"),
        (".5", "0.5"),
        ("9" * 500, "9" * 500),
        ("1e999", '"1e999"'),
        ("inf", '"inf"'),
        ("-nan", '"-nan"'),
        ("(1, 2)", "[1, 2]"),
        ("(1,)", "[1]"),
        ("(1)", "1"),
        ("()", "[]"),
        ("((1, 2), [(3)])", "[[1, 2], [3]]"),
        ("[1, [2, [3, []]],]", "[1, [2, [3, []]]]"),
        ("{'a': {'b': [None]}, \"c\": ()}", '{"a": {"b": [null]}, "c": []}'),
        ("{1: 'a', 1.5: 'b', True: 'c'}", '{"1": "a", "1.5": "b", "true": "c"}'),
        ("'a)]}'", '"a)]}"'),
        ("'a\nb'", '"a\\nb"'),
        ("'tab\\t \\\\ \\' \\x41 \\101 \\0'", '"tab\\t \\\\ \' A A \\u0000"'),
        ("'C:\\\\dir\\\\'", '"C:\\\\dir\\\\"'),
        ("r'C:\\dir'", '"C:\\\\dir"'),
        ("'\\d+\\.\\/'", '"\\\\d+\\\\.\\\\/"'),
        ("'a\\\nb'", '"ab"'),
        ("'\\ud83d\\ude00'", '"😀"'),
        ("'\\U0001F600'", '"😀"'),
        ("'\\ud83d'", '"\ufffd"'),
        ("'\\ud83d\\ud83d\\ude00x'", '"\ufffd😀x"'),
        ("'\\ude00\\ud83d!'", '"\ufffd\ufffd!"'),
        ("'C:\\users\\xampp'", '"C:\\\\users\\\\xampp"'),
        ("'\\UFFFFFFFF'", '"\\\\UFFFFFFFF"'),
        ("''", '""'),
        ("'''it's\n'''", '"it\'s\\n"'),
        ('""""a""b"""', '"\\"a\\"\\"b"'),
        ("''''''", '""'),
        ("'a' \"b\"\n'c'", '"abc"'),
        ("('a'\n'b')", '"ab"'),
        ("b'x'", '"x"'),
    ],
)
def test_a_literal_becomes_json(literal, written):
    assert python_value(literal) == written
    assert python_value(f" {literal} ") == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "f(1)",
        "1 + 1",
        "[1 2]",
        "[1, 2",
        "(1 2)",
        "{'a' 1}",
        "{'a': 1 'b': 2}",
        "{[]: 1}",
        "{{}: 1}",
        "{'a': 1, 'a': 2}",
        "{1, 2}",
        "'open",
        "'''open''",
        "f'{x}'",
        "'a' b",
        "0x",
        "0x_",
        "1__x",
        "--1",
        "*a",
        "lambda: 0",
        "__import__('os')",
        "[x for x in y]",
        "[" * 1000 + "]" * 1000,
        "(" * 100_000,
        "\0",
        "1\0",
    ],
)
def test_what_is_no_literal_is_refused(text):
    assert python_value(text) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip


@given(values)
def test_the_notation_of_python_itself_is_read(value):
    found = python_value(repr(value))
    assert found is not None
    assert json.loads(found) == json.loads(json.dumps(value))


@given(st.text(alphabet="'\"\\urxn0{}[](),:1 aT", max_size=20))
def test_any_text_is_json_or_refused(text):
    found = python_value(text)
    if found is not None:
        json.loads(found)
