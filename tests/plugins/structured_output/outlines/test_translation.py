"""Texts that a translated schema matches, and limits of the translation."""

import json
import re

import pytest

from quire.errors import GrammarError
from quire_structured_output.outlines.json_schema import schema_regex
from quire_structured_output.regex_syntax import MAX_REGEX_LENGTH, check_regex
from quire_structured_output.schemas.disjoint import are_disjoint, keeps_type

I = {"type": "integer"}  # noqa: E741
N = {"type": "null"}
S = {"type": "string"}


def matches(schema, text):
    return re.fullmatch(schema_regex(schema).expression, text) is not None


def members(*names, **more):
    return {"type": "object", "properties": dict.fromkeys(names, I)} | more


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"type": "number"}, ["0", "-1.5", "1e9", "1E+99", "1.0e-1"], ["01", "1e999", "1.", "+1"]),
        (S, ['""', '"a\\n"', '"\\""'], ['"\x1f"', '"\n"', '"\\x"', '"', "a", '"\\u0041"']),
        (S | {"minLength": 2, "maxLength": 2}, ['"ab"'], ['"a"', '"abc"']),
        (S | {"maxLength": 0}, ['""'], ['"a"']),
        (S | {"minLength": 1}, ['"a"', '"abc"'], ['""']),
        (members("a", "b"), ["{}", '{"a":1}', '{"b": 1}', '{"a":1,"b":2}'], ['{"a":1,}']),
        (members("a", "b", required=["a", "b"]), ['{ "a":1,"b":2 }'], ['{"a":1}', '{"b":2}', "{}"]),
        (members("a", "b", "c", required=["b"]), ['{"b":1}', '{"a":1,"b":1,"c":1}'], ['{"a":1}']),
        (members("a", "b", "c", required=["a", "c"]), ['{"a":1,"c":1}'], ['{"a":1,"b":1}']),
        ({"type": "object", "additionalProperties": False}, ["{}", "{ }"], ['{"a":1}']),
        ({"type": "object", "additionalProperties": I}, ["{}", '{"a":1,"b":2}'], ['{"a":"b"}']),
        ({"type": "array", "items": False}, ["[]"], ["[1]"]),
        ({"type": "array", "items": I, "maxItems": 0}, ["[]"], ["[1]"]),
        ({"type": "array", "items": I, "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
        ({"type": "array", "items": I, "maxItems": 3}, ["[]", "[1,2,3]"], ["[1,2,3,4]"]),
        ({"type": "array", "items": I, "minItems": 1}, ["[1]", "[1,2]"], ["[]"]),
        ({"items": I, "minItems": 2, "maxItems": 2}, ["[1,2]"], ["[1]", "[1,2,3]"]),
        ({"type": "array", "items": I}, ["[]", "[1, 2]"], ["[1 2]", "[,1]", "[1,]"]),
        ({"prefixItems": [I, N]}, ["[1,null]"], ["[1]", "[1,null,2]", "[null,1]"]),
        ({"prefixItems": [I], "maxItems": 1}, ["[1]"], ["[]", "[1,2]"]),
        ({"prefixItems": [I], "items": I}, ["[1]", "[1,2,3]"], ["[]"]),
        ({"prefixItems": [I], "items": I, "maxItems": 2}, ["[1]", "[1,2]"], ["[1,2,3]"]),
        ({"prefixItems": [I], "items": I, "minItems": 2}, ["[1,2]", "[1,2,3]"], ["[1]"]),
        ({"prefixItems": [I], "items": False, "minItems": 1}, ["[1]"], ["[1,2]"]),
        (S | {"format": "ipv4"}, ['"1.2.3.4"', '"0.10.200.255"'], ['"01.2.3.4"', '"1.2.3.256"']),
        (
            S | {"format": "time"},
            ['"23:59:59Z"', '"00:00:00.5+01:30"'],
            ['"23:59:59"', '"24:00:00Z"', '"23:59:59+24:00"'],
        ),
        (S | {"format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"2024-2-29"', '"0000-01-01"']),
        (S | {"format": "date-time"}, ['"2024-02-29T23:59:59Z"'], ['"2024-02-29"']),
        ({"enum": [1, "1", [None]]}, ["1", '"1"', "[null]"], ["2", "null"]),
        ({"const": 2**53}, [str(2**53)], []),
        ({"const": "a.b|c"}, ['"a.b|c"'], ['"aXb|c"', '"a.b"']),
        ({"type": ["integer", "null"]}, ["3", "null"], ["3.5", '"3"']),
        ({"type": "integer", "enum": [1, 2.0, 2.5, "a"]}, ["1", "2.0"], ["2.5", '"a"']),
        ({"type": "integer", "minimum": 3, "maximum": 3}, ["3"], ["2", "4"]),
        ({"type": "integer", "maximum": 2**53}, [str(2**53)], [str(2**53 + 1)]),
        ({"$ref": "#/$defs/a~01b", "$defs": {"a~1b": I, "a/b": N}}, ["1"], ["null"]),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a~1b": I, "a/b": N}}, ["null"], ["1"]),
        ({"$ref": "#/$defs/l/1/items", "$defs": {"l": [N, {"items": I}]}}, ["1"], ["null"]),
        (
            {"anyOf": [{"$ref": "#/$defs/a"}, {"items": {"$ref": "#/$defs/a"}}], "$defs": {"a": I}},
            ["1", "[2]"],
            ["[[1]]"],
        ),
        ({"allOf": [I]}, ["1"], ["null"]),
        ({"oneOf": [I, N]}, ["1", "null"], ['"a"']),
        (json.dumps(I), ["1"], ["null"]),
    ],
    ids=str,
)  # fmt: skip
def test_it_matches_these_texts_and_not_those(schema, yes, no):
    assert [text for text in yes if not matches(schema, text)] == []
    assert [text for text in no if matches(schema, text)] == []


def tuples(levels):
    """A schema of so many parts in each other."""
    schema = N
    for _ in range(levels - 1):
        schema = {"prefixItems": [schema]}
    return schema


def lists(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_24_levels_are_taken_and_no_more():
    schema_regex(tuples(24))
    with pytest.raises(GrammarError, match="more than 24 deep"):
        schema_regex(tuples(25))
    schema_regex({"const": lists(25)})  # the value itself and 24 in it
    with pytest.raises(GrammarError, match="'const' at / is nested more than 24 deep"):
        schema_regex({"const": lists(26)})


def test_parts_side_by_side_are_not_deep():
    assert matches({"anyOf": [{"prefixItems": [N]}] * 40}, "[null]")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "#/prefixItems/1", "prefixItems": [I]}, "beside '$ref'"),
        ({"items": {"$ref": "#/$defs/l/1"}, "$defs": {"l": [I]}}, "has no '#/$defs/l/1'"),
        ({"properties": {"a": I | {"$id": "other"}}}, "'$id' at /properties/a"),
        ({"const": {"\ud800": 1}}, "surrogate"),
        ({"const": [1, 2**53 + 1]}, "beyond 2**53"),
        ({"const": -(2**53) - 1}, "beyond 2**53"),
        ({"enum": list(range(2001))}, "has 2001 values"),
        (S | {"minLength": True}, "'minLength' at /"),
        (I | {"minimum": True}, "'minimum' at / must be a number"),
        (I | {"minimum": -(2**53) - 1}, "beyond 2**53"),
        ({"prefixItems": [I, I], "maxItems": 1}, "'maxItems'"),
        ({"prefixItems": []}, "'prefixItems' at / must be a non-empty list"),
        ({"prefixItems": [I], "items": False, "minItems": 2}, "nothing can satisfy 'minItems' 2"),
        ({"anyOf": [I], "type": "integer"}, "'type' at / beside 'anyOf'"),
        ({"$ref": "#/" + "a" * 1000}, "of more than 1000 characters"),
        ({"$ref": "#/" + "a" * 998}, "the schema has no"),
    ],
    ids=str,
)  # fmt: skip
def test_it_is_refused_for_this_reason(schema, reason):
    with pytest.raises(GrammarError) as caught:
        schema_regex(schema)
    assert reason in str(caught.value)


def test_the_largest_that_is_allowed_is_taken():
    schema_regex({"enum": list(range(2000))})
    schema_regex(members(*map(str, range(500)), required=["0"]))
    check_regex("a" * MAX_REGEX_LENGTH, "the regex")
    with pytest.raises(GrammarError, match=f"{MAX_REGEX_LENGTH + 1} characters"):
        check_regex("a" * (MAX_REGEX_LENGTH + 1), "the regex")


def having(name, value, **more):
    return {"type": "object", "properties": {name: {"const": value}}, "required": [name]} | more


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (I, S, True),
        (I, {"type": "number"}, False),
        (I, {"type": ["string", "integer"]}, False),
        ({"type": ["integer", "null"]}, {"type": ["string", "boolean"]}, True),
        ({"const": 1}, {"const": 1.0}, False),
        ({"const": 1}, {"const": True}, True),
        ({"const": [1, {"a": 2.0}]}, {"const": [1.0, {"a": 2}]}, False),
        ({"enum": [1, 2]}, {"enum": [3]}, True),
        ({"enum": [1, 2]}, {"enum": [2, 3]}, False),
        ({"enum": ["a"]}, I, True),
        ({"enum": [1.5]}, I, False),
        (having("k", 1), having("k", 2), True),
        (having("k", 1), having("k", 1), False),
        (having("k", 1), having("k", 2) | {"required": []}, False),
        (having("k", 1) | {"required": []}, having("k", 2), False),
        (having("a", 1), having("b", 1), False),
        (having("a", 1), having("b", 1, additionalProperties=False), True),
        (having("b", 1, additionalProperties=False), having("a", 1), True),
        (having("k", 1), having("k", 2) | {"type": ["object", "null"]}, True),
        (
            having("k", 1) | {"type": ["object", "null"]},
            having("k", 2) | {"type": ["object", "null"]},
            False,
        ),
        ({}, I, False),
        (True, I, False),
        (I, False, False),
    ],
    ids=str,
)
def test_schemas_are_disjoint_only_by_a_proof(first, second, expected):
    assert are_disjoint(first, second) is expected


@pytest.mark.parametrize(
    ("value", "types", "expected"),
    [
        (1, {"integer"}, True), (1, {"number"}, True), (1.0, {"integer"}, True),
        (1.5, {"integer"}, False), (1.5, {"number"}, True), (True, {"integer"}, False),
        (True, {"boolean"}, True), (None, {"null"}, True), ("", {"string"}, True),
        ([], {"array"}, True), ({}, {"object"}, True), ({}, {"array"}, False),
    ],
)  # fmt: skip
def test_a_value_has_the_types_that_json_schema_says(value, types, expected):
    assert keeps_type(value, types) is expected
