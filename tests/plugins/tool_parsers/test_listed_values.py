"""Values that a schema lists, and the constants that it allows."""

import pytest

from quire_tool_parsers.listed_values import allows, listed_values, readable_texts

DEFINITIONS = {"$defs": {"Mode": {"enum": ["a", True]}, "Loop": {"$ref": "#/$defs/Loop"}}}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"enum": ["a", None]}, ["a", None]),
        ({"const": 1}, [1]),
        ({"type": ["string", "null"], "enum": ["a", 1, None]}, ["a", None]),
        ({"anyOf": [{"enum": ["a"]}, {"const": False}], "title": "Mode"}, ["a", False]),
        ({"allOf": [{"$ref": "#/$defs/Mode"}]}, ["a", True]),
        ({"$ref": "#/$defs/Loop"}, None),
        ({"$ref": "#/$defs/None"}, None),
        ({"enum": ["a"], "minLength": 2}, None),
        ({"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}, None),
        (True, None),
    ],
)
def test_a_schema_lists_its_values_or_does_not(schema, values):
    assert listed_values(schema, DEFINITIONS) == values


def test_a_text_is_readable_if_it_is_read_as_one_of_the_values():
    types = frozenset({"string", "boolean", "null"})
    assert readable_texts(["a", "true", "None", "1", False], types) == ["a"]
    assert readable_texts(["true", True], types) == ["true"]


def test_a_schema_allows_constants_by_its_types_lists_and_alternatives():
    schema = DEFINITIONS | {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]}
    assert [allows(schema, each, schema) for each in (None, True, False)] == [True, True, False]
    assert not allows({"const": 1}, True, {})
    assert allows({"minLength": 1}, None, {})
    assert not allows({"allOf": [{}, {"type": "string"}]}, None, {})
