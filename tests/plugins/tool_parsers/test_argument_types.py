"""The types of an argument are those of its schema, wherever the schema says so."""

import pytest

from quire_tool_parsers.argument_types import ANY_TYPE, ArgumentTypes


def types_of(schema, key="a", **other):
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, **other}}
    return set(ArgumentTypes([tool]).of("f", key))


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, 1.5, None, True, [], {}]}, set(ANY_TYPE)),
        ({"const": 3}, {"integer"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, {"string", "null"}),
        ({"oneOf": [{"type": "integer"}, {"anyOf": [{"type": "array"}]}]}, {"integer", "array"}),
        ({"allOf": [{"type": "object"}, {"description": "more"}]}, {"object"}),
        ({"properties": {}}, {"object"}),
        ({"additionalProperties": False}, {"object"}),
        ({"items": {"type": "string"}}, {"array"}),
        ({"type": "string", "enum": ["1"]}, {"string"}),
        ({"$ref": "#/$defs/Unit"}, {"string"}),
        ({"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, {"object", "null"}),
    ],
)
def test_a_schema_names_types_in_many_ways(schema, types):
    defs = {"Unit": {"enum": ["C", "F"]}, "Place": {"type": "object"}}
    assert types_of(schema, **{"$defs": defs}) == types


@pytest.mark.parametrize(
    "schema",
    [
        {},
        None,
        True,
        7,
        "string",
        [],
        {"type": "banana"},
        {"type": 3},
        {"type": {"type": "integer"}},
        {"type": [["integer"]]},
        {"enum": []},
        {"enum": 3},
        {"anyOf": 3},
        {"anyOf": [{}]},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/schema"},
        {"$ref": 3},
        {"$ref": "#/properties/a"},
    ],
)
def test_a_schema_that_does_not_say_is_one_of_strings(schema):
    assert types_of(schema) == {"string"}


@pytest.mark.parametrize(
    "tool", [{"name": "f"}, {"name": "f", "parameters": None}, {"name": "f", "parameters": []},
             {"name": "f", "parameters": {"properties": 3}}]
)  # fmt: skip
def test_arguments_without_a_schema_are_strings(tool):
    types = ArgumentTypes([tool])
    assert types.of("f", "a") == types.of("unknown", "a") == {"string"}
    assert types.of("f", "a", ANY_TYPE) == ANY_TYPE


def test_arguments_that_are_not_listed_have_the_schema_of_additional_ones():
    assert types_of({}, "b", additionalProperties={"type": "integer"}) == {"integer"}


def test_definitions_that_refer_to_each_other_end():
    many = {"anyOf": [{"$ref": f"#/$defs/D{i % 40}"} for i in range(400)]}
    defs = {f"D{i}": many for i in range(39)} | {"D39": {"type": "number"}}
    assert types_of(many, **{"$defs": defs}) == {"number"}


def test_a_schema_nested_very_deeply_is_not_followed():
    schema = {"type": "integer"}
    for _ in range(900):
        schema = {"anyOf": [schema]}
    assert types_of(schema) == {"string"}
