"""Every keyword of JSON Schema is supported, or refused with its name and path."""

import json
import time

import pytest

from quire.errors import GrammarError
from quire_structured_output.outlines.json_schema import schema_regex

I = {"type": "integer"}  # noqa: E741
STRING = {"type": "string"}


def inside(schema):
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("multipleOf", I | {"multipleOf": 3}),
        ("maximum", {"type": "number"} | {"maximum": 1}),
        ("exclusiveMinimum", {"type": "number"} | {"exclusiveMinimum": 1}),
        ("exclusiveMaximum", {"type": "number"} | {"exclusiveMaximum": 1}),
        ("uniqueItems", {"type": "array", "items": I, "uniqueItems": True}),
        ("contains", {"type": "array", "contains": I}),
        ("minContains", {"type": "array", "minContains": 1}),
        ("maxContains", {"type": "array", "maxContains": 1}),
        ("unevaluatedItems", {"type": "array", "unevaluatedItems": False}),
        ("additionalItems", {"type": "array", "additionalItems": False}),
        ("not", {"type": "string", "not": {"const": "a"}}),
        ("if", {"if": I, "then": I, "else": STRING}),
        ("then", {"then": I}),
        ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
        ("dependentSchemas", {"type": "object", "dependentSchemas": {"a": I}}),
        ("dependencies", {"type": "object", "dependencies": {"a": ["b"]}}),
        ("patternProperties", {"type": "object", "patternProperties": {"^a": I}}),
        ("propertyNames", {"type": "object", "propertyNames": {"maxLength": 3}}),
        ("minProperties", {"type": "object", "properties": {"a": I}, "minProperties": 1}),
        ("maxProperties", {"type": "object", "maxProperties": 1}),
        ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
        ("additionalProperties", {"properties": {"a": I}, "additionalProperties": I}),
        ("required", {"type": "object", "properties": {"a": I}, "required": ["b"]}),
        ("required", {"type": "object", "required": ["b"]}),
        ("format", STRING | {"format": "hostname"}),
        ("format", STRING | {"format": "uri"}),
        ("format", STRING | {"pattern": "a", "format": "date"}),
        ("minLength", STRING | {"pattern": "a", "minLength": 2}),
        ("maxLength", STRING | {"format": "date", "maxLength": 2}),
        ("contentEncoding", STRING | {"contentEncoding": "base64"}),
        ("allOf", {"allOf": [I, {"type": "number"}]}),
        ("allOf", {"allOf": [I], "anyOf": [I]}),
        ("properties", {"anyOf": [I], "properties": {"a": I}}),
        ("type", {"anyOf": [I, STRING], "type": "integer"}),
        ("maxLength", {"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": STRING}}),
        ("oneOf", {"oneOf": [I, {"type": "number"}]}),
        ("oneOf", {"oneOf": [{"maxLength": 2}, {"type": "string"}]}),
        ("$ref", {"$ref": "https://example.org/schema"}),
        ("$ref", {"$ref": "#anchor"}),
        ("$ref", {"$ref": "other.json#/a"}),
        ("$dynamicRef", {"$dynamicRef": "#a"}),
        ("items", {"type": "array", "items": [I, I]}),
        ("nullable", STRING | {"nullable": True}),
        ("minlength", STRING | {"minlength": 3}),
        ("enum", {"enum": [2**60]}),
        ("const", {"const": {"a": [-(2**53) - 1]}}),
    ],
)
def test_what_is_not_kept_is_refused_by_name_and_path(keyword, schema):
    if "$ref" not in schema:
        schema = inside(schema)
    with pytest.raises(GrammarError) as caught:
        schema_regex(schema)
    path = "/" if "$ref" in schema else "/properties/x"
    assert f"does not support '{keyword}' at {path}" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (False, "false"),
        (inside(False), "'false' at /properties/x"),
        ({"enum": []}, "empty 'enum'"),
        (STRING | {"minLength": 3, "maxLength": 2}, "'minLength' 3 and 'maxLength' 2"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "'minItems' 3 and 'maxItems' 2"),
        ({"prefixItems": [I], "items": False, "minItems": 2}, "'minItems' 2"),
        (I | {"enum": ["a", "b"]}, "both 'type' and 'enum'"),
        ({"anyOf": []}, "'anyOf'"),
    ],
)
def test_what_nothing_can_satisfy_is_an_error(schema, reason):
    with pytest.raises(GrammarError) as caught:
        schema_regex(schema)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "an object, true or false"),
        ("3", "an object, true or false"),
        ('{"const": NaN}', "NaN"),
        ('{"const": 1e999}', "not finite"),
        ({"type": "text"}, "'type' at /"),
        ({"type": []}, "'type' at /"),
        ({"type": "array", "items": 3}, "/items"),
        ({"properties": []}, "'properties' at /"),
        ({"properties": {"a": I}, "required": "a"}, "'required' at /"),
        (STRING | {"minLength": -1}, "'minLength' at /"),
        (STRING | {"maxLength": True}, "'maxLength' at /"),
        (STRING | {"maxLength": None}, "'maxLength' at /"),
        (STRING | {"pattern": 3}, "'pattern' at /pattern"),
        (STRING | {"pattern": "(?!a)b"}, "lookahead"),
        ({"$ref": "#/$defs/none"}, "no '#/$defs/none'"),
        ({"$ref": 3}, "'$ref'"),
        ({"const": "\ud800"}, "surrogate"),
        (inside({"a": 1}), "'a' at /properties/x"),
    ],
)
def test_what_is_no_schema_is_an_error(schema, reason):
    with pytest.raises(GrammarError) as caught:
        schema_regex(schema)
    assert reason in str(caught.value)


def nested(depth):
    return json.loads('{"type": "array", "items": ' * depth + "true" + "}" * depth)


def doubling(levels):
    defs = {
        f"n{i}": {"prefixItems": [{"$ref": f"#/$defs/n{i + 1}"}] * 2} for i in range(levels)
    } | {f"n{levels}": I}
    return {"$ref": "#/$defs/n0", "$defs": defs}


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": list(range(100_000))},
        {"enum": ["x" * 300_000]},
        nested(100),
        '{"items": ' * 100_000 + "true" + "}" * 100_000,
        {"type": "object", "properties": {f"p{i}": I for i in range(2_000)}},
        {"type": "object", "properties": {f"p{i}": STRING for i in range(500)}},
        doubling(16),
        {"$ref": "#"},
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"oneOf": [{"$ref": "#/oneOf/0"}, {"$ref": "#/oneOf/1"}]},
    ],
    ids=["enum", "long", "deep", "deeper", "wide", "wide-optional", "doubling", "self", "items",
         "circle", "oneOf"],
)  # fmt: skip
def test_a_bomb_is_refused_at_once(schema):
    start = time.monotonic()
    with pytest.raises(GrammarError):
        schema_regex(schema)
    assert time.monotonic() - start < 2.0


def test_annotations_say_nothing():
    plain = schema_regex(inside(I)).expression
    noted = inside(I | {"title": "t", "description": "d", "default": 1, "examples": [1], "x-a": 1})
    noted |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "a", "$comment": ""}
    assert schema_regex(noted).expression == plain


def test_a_recursive_reference_is_refused_by_name():
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    with pytest.raises(GrammarError, match=r"'\$ref' at /properties/next.*leads back to itself"):
        schema_regex(tree)
