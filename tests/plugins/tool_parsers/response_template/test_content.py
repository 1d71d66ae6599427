"""The text of a region becomes the value that transformers reads, or is refused."""

import pytest

from quire_tool_parsers.response_template.content import is_in_string, reader_of

TAG = r"<(?P<key>\w+)>(?P<value>.*?)</\w+>"
AS_JSON = {"name": "json", "args": {"allow_non_json": True}}
VALUES = [
    ("text", {}, " a\n"),
    ("text", {"strip": False}, " a\n"),
    ("int", {}, " 12 "),
    ("float", {}, "1.5\n"),
    ("bool", {}, "True"),
    ("bool", {}, "no"),
    ("json", {}, '{"a": [1, null, "x\\n"]}'),
    ("json", {"allow_non_json": True}, " not json "),
    ("json", {"unquoted_keys": True}, '{a: 1, b : {c: "d: 1, e: 2"}}'),
    ("json", {"string_delims": [["<|", "|>"]]}, '{"a": <|x "y" \\ \n|>}'),
    (
        "json",
        {"string_delims": [["'", "'"], ["`", "`"]]},
        "{'a': `x`}",
    ),
    ("xml-inline", {"tag_pattern": TAG}, "<a>1</a> <b> x\ny </b><a>2</a>"),
    ("xml-inline", {"tag_pattern": TAG, "merge_duplicates": True}, "<a>1</a><b></b><a>2</a>"),
    ("xml-inline", {"tag_pattern": TAG, "value_parser": AS_JSON}, "<a>[1]</a><b>x</b>"),
    ("xml-inline", {"tag_pattern": TAG}, "nothing"),
    ("kv-lines", {}, "a: 1\n\n b:x:y \nnone"),
    ("kv-lines", {"line_sep": ";", "kv_sep": "=", "value_parser": AS_JSON}, "a=1; b = x"),
    ("python-call-list", {}, "[find(city='Oslo', days=[1, {'a': None}]), now()]"),
    ("python-call-list", {}, "[]"),
]


@pytest.mark.parametrize(("name", "args", "text"), VALUES)
def test_a_value_is_that_of_transformers(name, args, text):
    parsers = pytest.importorskip("transformers.utils.chat_parsing.content_parsers")
    value = reader_of(name, args)(text)
    expected = parsers.parse_content(text, name, args)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("int", "x"), ("int", "9" * 5000), ("float", ""), ("json", "{"), ("json", "NaN"),
        ("json", "[" * 100_000), ("python-call-list", "f()"), ("python-call-list", "[f() g()]"),
        ("python-call-list", "[f(1)]"), ("python-call-list", "[f("),
    ],
)  # fmt: skip
def test_other_text_is_refused(name, text):
    with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says of it
        reader_of(name, {})(text)


@pytest.mark.parametrize(
    ("text", "is_in"),
    [
        ('{"a": "b', True),
        ('{"a": "b"', False),
        ('{"a": "b\\"', True),
        ('{"a": "b\n', False),
        ("", False),
    ],
)
def test_a_string_without_an_end_may_go_on(text, is_in):
    assert is_in_string(text) is is_in
