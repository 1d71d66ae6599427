"""Functions always have the schema of an object; broken schemas are refused with their place."""

import pytest

from quire.errors import InvalidRequestError
from quire.frontend.chat.tool_schemas import (
    MAX_DEPTH,
    NO_ARGUMENTS,
    check_parameters,
    normalized,
)

OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, NO_ARGUMENTS),
        ({"parameters": None}, NO_ARGUMENTS),
        ({"parameters": {}}, OBJECT),
        ({"parameters": OBJECT}, OBJECT),
        ({"parameters": {"type": ["object", "null"]}}, OBJECT),
        (
            {"parameters": {"properties": {"a": True}}},
            {"properties": {"a": True}, "type": "object"},
        ),
        (
            {"parameters": {"$ref": "#/$defs/A", "$defs": {"A": OBJECT}}},
            {"$ref": "#/$defs/A", "$defs": {"A": OBJECT}},
        ),
    ],
)
def test_a_function_has_the_schema_of_an_object(parameters, expected):
    (found,) = normalized([{"name": "now", **parameters}])
    assert found == {"name": "now", "parameters": expected}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "must be the JSON schema of an object"),
        ({"type": "string"}, 'must be a schema of type object, got type "string"'),
        ({"type": "dict"}, "'type' at / must be of object, array"),
        ({"type": 3}, "'type' at / must be"),
        ({"properties": []}, "'properties' at / must be an object of schemas"),
        ({"properties": {"a": 3}}, "3 at /properties/a is no schema"),
        ({"properties": {"a": {"type": "str"}}}, "'type' at /properties/a must be"),
        ({"properties": {"a": {"required": True}}}, "'required' at /properties/a must be a list"),
        ({"properties": {"a": {"enum": "x"}}}, "'enum' at /properties/a must be a list"),
        ({"properties": {"a": {"enum": []}}}, "'enum' at /properties/a must be a list of at least"),
        ({"properties": {"a": {"minLength": -1}}}, "'minLength' at /properties/a must be a whole"),
        ({"properties": {"a": {"maxLength": 1.5}}}, "'maxLength' at /properties/a must be a whole"),
        ({"properties": {"a": {"minItems": True}}}, "number from 0 on; got true"),
        ({"properties": {"a": {"maxItems": None}}}, "number from 0 on; got null"),
        ({"minProperties": "1"}, "'minProperties' at / must be a whole number"),
        ({"properties": {"a": {"anyOf": {}}}}, "'anyOf' at /properties/a must be a list"),
        (
            {"properties": {"a": {"anyOf": [{}, None]}}},
            "null at /properties/a/anyOf/1 is",
        ),
        ({"properties": {"a": {"items": "x"}}}, '"x" at /properties/a/items is no schema'),
        (
            {"properties": {"a": {"pattern": "("}}},
            "'pattern' at /properties/a has a '(' that is not",
        ),
        (
            {"patternProperties": {"[a": {}}},
            "'patternProperties' at / has a '[' that is not closed",
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/B"}}},
            "'$ref' at /properties/a: '#/$defs/B' is to",
        ),
        ({"$defs": {"a": {"items": [{"type": "x"}]}}}, "'type' at /$defs/a/items/0"),
    ],
)
def test_a_broken_schema_is_refused_with_its_place(parameters, message):
    with pytest.raises(InvalidRequestError) as caught:
        check_parameters({"name": "now", "parameters": parameters}, "tools[1].function")
    assert caught.value.param == "tools[1].function.parameters"
    assert message in str(caught.value)


def test_sizes_that_are_whole_numbers_are_taken():
    sizes = {"minLength": 0, "maxLength": 2.0, "minItems": 1, "maxItems": 10**30}
    check_parameters({"parameters": {"properties": {"a": sizes}}}, "tools[0].function")


def test_a_reference_of_a_schema_with_several_bases_is_left_to_the_backend():
    inner = {"$id": "http://a/", "$defs": {"B": {}}, "items": {"$ref": "#/$defs/B"}}
    check_parameters({"parameters": {"properties": {"a": inner}}}, "tools[0].function")


def test_a_schema_that_is_nested_too_deeply_is_refused():
    schema: dict = {}
    for _ in range(MAX_DEPTH + 1):
        schema = {"items": schema}
    with pytest.raises(InvalidRequestError, match=f"nested more than {MAX_DEPTH} deep"):
        check_parameters({"parameters": schema}, "tools[0].function")
