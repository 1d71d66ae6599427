"""The normal form of JSON schemas: what is written in other words, and what is refused by name."""

import contextlib
import json
import time

import pytest

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.schema_judge import judge
from quire.testing.structured_output import contract_vocabulary
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.schemas.schema_normal_form import normal_form

BACKEND = LLGuidanceBackend(contract_vocabulary())
A_REF = {"$ref": "#/$defs/A"}
KIND = {"type": "string", "enum": ["x", "y", "z"]}
# Schemas, with instances of both kinds; which is which is decided by an independent validator.
SCHEMAS = [
    (
        {
            **A_REF,
            "$defs": {
                "A": {
                    "$id": "http://x/a",
                    "$ref": "#/$defs/B",
                    "$defs": {"B": {"type": "integer"}},
                },
                "B": {"type": "string"},
            },
        },
        [1, "a"],
    ),
    ({"properties": {"a": {"$id": "http://x/a", "$ref": "#/$defs/B",
                           "$defs": {"B": {"type": "integer"}}}},
      "$defs": {"B": {"type": "string"}}}, [{"a": 1}, {"a": "b"}]),
    ({"$ref": "#/definitions/a", "type": "string", "definitions": {"a": {"type": "integer"}},
      "$schema": "http://json-schema.org/draft-07/schema#"}, [1, "a"]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3,
      "exclusiveMinimum": True}, [3, 4, "a"]),
    ({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
     [{}, {"next": {"next": {}}}, {"next": 1}]),
    ({"pattern": "^\\d{3}$"}, ["012", "0۴၈", 5]),
    ({"minimum": 1.1}, [2.6, 1.0, "a", None]),
    ({"prefixItems": [{"type": "integer"}, {"type": "string"}]}, [[], [1], [1, "a", 5], ["a"]]),
    ({"not": {"required": ["a"]}}, [{}, {"b": 1}, {"a": 1}, 5]),
    ({"not": {"type": ["string", "null"]}}, [1, True, "a", None, []]),
    ({"not": {"enum": ["a", "ab", None]}}, ["", "a", "ab", "abc", "b", None, 1]),
    ({"not": {"allOf": [{"enum": ["a"]}, {"type": ["object", "string", "null"]}]}},
     ["a", "b", {}, [], 1, True, None]),
    ({"not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, [{}, {"a": 1}, {"b": 1}]),
    ({"type": "object", "required": ["kind"], "properties": {"kind": KIND, "size": {}},
      "if": {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
      "then": {"required": ["size"]}, "else": {"properties": {"size": False}}},
     [{"kind": "x", "size": 1}, {"kind": "x"}, {"kind": "y"}, {"kind": "z", "size": 1}]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
     [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {}]),
    ({"oneOf": [{"required": ["a", "c"]}, {"required": ["b", "c"]}], "type": "object"},
     [{"a": 1, "c": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, [5, "a", None, [], {"a": 1}]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a", None]),
    ({"oneOf": [{"minimum": 1}, {"maximum": 3}], "type": "number"}, [0, 1, 2.5, 3, 3.5]),
    ({"type": "array", "oneOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]},
     [[], ["a"], [None], [1]]),
    ({"oneOf": [{"type": "object", "properties": {name: {}}, "additionalProperties": False}
                for name in "ab"]}, [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
    ({"oneOf": [{"$ref": "#/$defs/tree"}, {"$ref": "#/$defs/link"}],
      "$defs": {
          "tree": {"type": "object", "additionalProperties": False,
                   "properties": {"a": {"oneOf": [{"$ref": "#/$defs/tree"},
                                                  {"$ref": "#/$defs/link"}]}}},
          "link": {"type": "object", "required": ["to"], "properties": {"to": {}}}}},
     [{}, {"a": {}}, {"to": 1}, {"a": {"to": 1}}, {"a": {"a": 1}}, 5]),
    ({"oneOf": [{"enum": ["long", "int"]},
                {"type": "string", "pattern": "^[a-z]+$", "not": {"enum": ["long", "int"]}}]},
     ["long", "int", "other", "A"]),
    ({"oneOf": [{"type": "string"}, {"enum": ["a", {"x": 1}]}]}, ["a", "b", {"x": 1}, {}, 1]),
    ({"oneOf": [{"type": "object", "required": ["kind"],
                 "properties": {"kind": {"enum": ["a", "b"]}, "x": {}}},
                {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "c"}}},
                {"type": "object", "properties": {"kind": False}}]},
     [{"kind": "a"}, {"kind": "c"}, {"kind": "d"}, {}, {"x": 1}]),
    ({"const": "a\0b"}, ["a\0b", "ab"]),
    ({"pattern": "^\\cC|\\s$"}, ["\x03", "", "\v", "\n", "a"]),
    ({"properties": {"a\n": {"type": "integer"}, "b": {}}, "required": ["a\n"]},
     [{"a\n": 1}, {"a\n": "x"}, {"b": "a\n"}]),
    ({"contains": {"type": "integer"}}, [[], [1], ["a"], ["a", 2], ["a", "b", 3, "c"], "a", {}]),
    ({"items": {"type": ["integer", "null"]}, "contains": {"minimum": 5, "type": "integer"},
      "maxItems": 2}, [[5], [4], [None, 5], [5, 5], [1, 2, 5], []]),
    ({"properties": {"a": {}, "b": {"type": "null"}}, "minProperties": 1},
     [{}, {"a": 1}, {"b": None}, {"c": 1}, {"b": 1}, {"a": 1, "c": 2}, 5]),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False,
      "minProperties": 2, "required": ["b"]},
     [{"b": 1}, {"a": 1, "b": 1}, {"b": 1, "c": 1}, {"a": 1}]),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False,
      "maxProperties": 1}, [{}, {"b": 1}, {"a": 1, "b": 1}, {"c": 1}]),
    ({"properties": {"a": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False,
      "minProperties": 1}, [{}, {"a": 1}, {"x1": 1}, {"y": 1}]),
    ({"type": "number", "oneOf": [{"maximum": 3}, {"minimum": 3}]}, [2, 3, 3.5]),
    ({"contains": False}, [[], [1], "a"]),
    ({"contains": {}, "minContains": 0}, [[], [1], "a"]),
    ({"maxContains": 1}, [[], [1, 1]]),
    ({"prefixItems": [{"type": "string"}], "unevaluatedItems": {"type": "null"}},
     [["a"], ["a", None], ["a", 1], [None]]),
    ({"items": {"type": "string"}, "unevaluatedItems": False}, [["a"], [1]]),
    ({"format": "uri-template"}, ["/a/{b}", "{", "{?x,y*}"]),
    ({"type": "string", "oneOf": [{"maxLength": 1}, {"minLength": 3}]}, ["", "ab", "abc"]),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
     [["a"], ["c", "a"], ["a", "a"], []]),
    ({"type": "object", "properties": {"tags": {"$ref": "#/$defs/tags"}, "n": {"type": "array"}},
      "$defs": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
     [{"tags": ["a", "b", ""]}, {"tags": ["a", "b", "a"]}, {"tags": ["a", "ab"]},
      {"tags": ["", ""]}, {"tags": [], "n": ["a", "a"]}, {"tags": ["a\n", "a\n"]}]),
    ({"type": "object", "propertyNames": {"pattern": "^a"}, "properties": {"b": {}}},
     [{"a1": 1}, {"b": 1}, {"c": 1}, {}]),
    ({"type": "object", "propertyNames": {"format": "uri-template", "minLength": 1}},
     [{"a/{b}": 1}, {"": 1}, {"{": 1}, {}]),
    ({"type": "object", "propertyNames": {"enum": ["a", "b.c"]}}, [{"b.c": 1}, {"bxc": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {"a": 1}, {"b": 1}, 3]),
    ({"$schema": "http://json-schema.org/draft-07/schema#",
      "dependencies": {"a": {"properties": {"b": {"type": "integer"}}}}},
     [{"b": 1, "a": 1}, {"b": "x", "a": 1}, {"b": "x"}]),
    ({"type": "object", "properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}],
      "unevaluatedProperties": False}, [{"a": 1}, {"b": 1}, {"c": 1}]),
    ({"type": "integer", "maximum": 2**63 - 1}, [5, 2**63, 2**63 - 1024]),
    ({"type": "integer", "maximum": 2**53 + 3}, [2**53 + 2, 2**53 + 4]),
    ({"type": "integer", "minimum": 2**53 + 5}, [2**53 + 4, 2**53 + 6]),
    ({"type": "integer", "exclusiveMaximum": -(2**53) - 3}, [-(2**53) - 4, -(2**53) - 2]),
    ({"format": "date"}, ["2024-02-29", "2023-02-29", "2000-02-29", "1900-02-29", "2024-13-01"]),
    ({"format": "time"}, ["22:59:59Z", "22:59:60Z", "24:00:00Z"]),
    ({"format": "json-pointer"}, ["/a/~0b", "a", "/~2"]),
    ({"format": "path"}, ["anything", 1]),
    ({"markdownDescription": "an annotation", "type": "null"}, [None, 1]),
    ({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"}, [1, 2, 4, 5]),
    ({"anyOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5, 1.5, "a"]),
    (True, [1, "a", {}]),
    ({"type": "object", "allOf": [{"propertyNames": {"pattern": "^a"}}],
      "unevaluatedProperties": False}, [{}, {"a": 1}, {"b": 1}]),
    ({"type": "object", "$ref": "#/$defs/n", "unevaluatedProperties": False,
      "$defs": {"n": {"propertyNames": {"pattern": "^a"}}}}, [{}, {"a": 1}, {"b": 1}]),
    ({"type": "object", "allOf": [{"propertyNames": {"pattern": "^a"}, "properties": {"ab": {}}}],
      "unevaluatedProperties": False}, [{}, {"ab": 1}, {"a": 1}]),
    ({"type": "object", "allOf": [{"propertyNames": {"pattern": "^a"}, "additionalProperties": {}}],
      "unevaluatedProperties": False}, [{}, {"a": 1}, {"b": 1}]),
    ({"type": ["object", "null"],
      "not": {"type": "object", "properties": {"a": {"type": "string"}}},
      "unevaluatedProperties": False}, [None, {}, {"a": 1}]),
    ({"type": ["object", "null"], "if": {"properties": {"a": {"type": "string"}}, "type": "object"},
      "then": False, "unevaluatedProperties": False}, [None, {}, {"a": 1}]),
    ({"not": {"not": {"properties": {"a": {"type": "string"}}}}}, [1, {}, {"a": "x"}, {"a": 1}]),
    ({"not": {"not": {"minimum": 5, "properties": {"a": {"type": "string"}}}}},
     [4, 5, "a", {}, {"a": "x"}, {"a": 1}]),
    ({"if": {"not": {"minimum": 5, "properties": {"a": {"type": "string"}}}},
      "then": {"type": ["boolean", "object"]}, "else": {"type": "number"}},
     [4, 5, True, {}, {"a": "x"}, {"a": 1}]),
    ({"oneOf": [{"not": {"minimum": 5, "properties": {"a": {"type": "string"}}}},
                {"type": "number", "maximum": 3}]}, [2, 3.5, 4, 5, {}, {"a": 1}]),
    ({"type": ["string", "object"],
      "oneOf": [{"required": ["a"], "minLength": 3}, {"maxLength": 4}]},
     ["ab", "abcd", "abcdef", {}, {"a": 1}]),
    ({"not": {"minimum": 3}}, [1, 2.5, 3, 4, "a", None]),
    ({"not": {"type": "number", "exclusiveMinimum": 3}}, [1, 3, 3.5, 4, "a", None]),
    ({"type": "number", "not": {"maximum": 3}}, [1, 3, 3.5, 4, "a"]),
    ({"not": {"minimum": -1, "exclusiveMaximum": 2}}, [-2, -1, 1.5, 2, 2.5, "a"]),
    ({"not": {"type": "string", "minLength": 2}}, ["", "a", "ab", 1, []]),
    ({"not": {"type": "string", "minLength": 0}}, ["", "a", 1, []]),
    ({"not": {"maxLength": 2}}, ["", "ab", "abc", 1]),
    ({"not": {"type": "array", "minItems": 2}}, [[], [1], [1, 2], "ab", {}]),
    ({"not": {"maxItems": 1, "items": {}}}, [[], [1], [1, 2], "ab", {}]),
    ({"not": {"type": "object", "minProperties": 1}}, [{}, {"a": 1}, 1]),
    ({"not": {"maxProperties": 0, "additionalProperties": {}}}, [{}, {"a": 1}, 1]),
    ({"type": "object", "properties": {"n": {"type": "integer"}, "why": {}}, "required": ["n"],
      "if": {"properties": {"n": {"minimum": 18}}}, "else": {"required": ["why"]}},
     [{"n": 18}, {"n": 17}, {"n": 17, "why": 1}, {"n": 20, "why": 1}]),
    ({"if": {"minLength": 0}, "then": {"type": "string"}}, ["", "a", 1]),
    ({"oneOf": [{"not": {"type": "string"}}, {"type": ["number", "string"]}]},
     ["a", 1, None, {}]),
    ({"if": True, "then": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
     [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
    ({"type": "array", "contains": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
     [[], [{"a": 1}], [{"a": 1, "b": 1}], [1]]),
    ({"type": "object", "if": {"required": ["a", "b"]}, "then": {},
      "else": {"oneOf": [{"required": ["c"]}, {"required": ["d"]}]}},
     [{"a": 1, "b": 1}, {"c": 1, "a": 1}, {"c": 1, "d": 1, "b": 1}, {"c": 1, "d": 1}, {"d": 1}]),
    ({"type": "string", "not": {"enum": ["ab" * 200, "ab" * 150 + "c", ""]}},
     ["ab" * 200, "ab" * 150 + "c", "", "a", "ab" * 150, "ab" * 199 + "ac", "ab" * 200 + "c", "c"]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, [1, 2]),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "if": {"type": "string"},
      "then": False}, [1, "a"]),
    ({"$schema": "http://json-schema.org/draft-06/schema#", "const": 1}, [1, 2]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "if": {"type": "string"},
      "then": False}, [1, "a"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "dependentRequired": {"a": ["b"]}},
     [{"a": 1}, {"a": 1, "b": 2}]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}],
      "additionalItems": {"type": "null"}}, [["a"], ["a", None], ["a", 1]]),
    ({"type": "object", "properties": {"next": {"$dynamicRef": "#n"}}, "$dynamicAnchor": "n"},
     [{}, {"next": {}}, {"next": 1}]),
    ({"type": "object", "properties": {"next": {"$dynamicRef": "#n"}}, "$anchor": "n"},
     [{}, {"next": {}}, {"next": 1}]),
    ({"anyOf": [{"enum": ["a", "c"], "const": "b"}, {"type": "null"}]}, [None, "a", "b"]),
    ({"type": "object", "additionalProperties": {"type": "null"}, "unevaluatedProperties": False},
     [{}, {"a": None}, {"a": 1}]),
    ({"properties": {"a": {}, "b": {}}, "additionalProperties": False, "maxProperties": 3},
     [{}, {"a": 1, "b": 2}, {"c": 1}]),
    ({"format": "ipv4"}, ["1.2.3.255", "1.2.3.256", "1.2.3.4.5", "a1.2.3.4"]),
    ({"type": "array", "prefixItems": [{"const": 5}], "items": {"enum": [1, 2]},
      "uniqueItems": True, "minItems": 3}, [[5, 1, 2], [5, 1, 1]]),
]  # fmt: skip
REFUSED = {
    "contains": ({"contains": {"type": "integer"}, "maxContains": 1}, "'maxContains' at /"),
    "unevaluated": (
        {"allOf": [{"prefixItems": [{}]}], "unevaluatedItems": False},
        "'unevaluatedItems' at /",
    ),
    "uniqueItems": (
        {"items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
        "nothing satisfies 'uniqueItems' and 'minItems' at /",
    ),
    "propertyNames": ({"propertyNames": {"pattern": "^a", "format": "uuid"}}, "'propertyNames' at"),
    "remote": ({"$ref": "https://example.com/schema"}, "nothing is fetched"),
    "missing": ({"$ref": "#/$defs/none"}, "'\\$ref' at / leads to '#/\\$defs/none'"),
    "lookahead": ({"pattern": "(?!a)b"}, "'pattern' at / uses a lookahead"),
    "overlap": ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, "'oneOf' at /"),
    "not": ({"not": {"multipleOf": 3}}, "'not' at /"),
    "if": ({"if": {"pattern": "a"}, "then": False}, "'if' at /"),
    "wide": ({"minProperties": 3}, "'minProperties' at /"),
    "number": ({"const": 2**60}, "'const' at / with the number"),
    "type": ({"type": "any"}, "'type' at / must be one or more of"),
    "false": (False, "nothing can satisfy"),
    "not of a pattern beside a type": (
        {"not": {"type": "string", "pattern": "^a"}},
        "'not' at /",
    ),
    "not of whole numbers": ({"not": {"type": "integer"}}, "'not' at /"),
    "not of a range of whole numbers": (
        {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 2,
            "not": {"type": "integer", "minimum": -11, "maximum": 8},
        },
        "'not' at /",
    ),
    "not of multiples beside a type": ({"not": {"type": "number", "multipleOf": 3}}, "'not' at /"),
    "not of a closed object": (
        {"not": {"type": "object", "additionalProperties": False}},
        "'not' at /",
    ),
    "if of whole numbers": (
        {"if": {"type": "integer", "minimum": 5}, "then": {"multipleOf": 5}},
        "'if' at /",
    ),
    "if of a pattern beside a type": (
        {"if": {"type": "string", "pattern": "^a"}, "then": {"minLength": 3}},
        "'if' at /",
    ),
    "if of a oneOf": (
        {"if": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "then": {"required": ["c"]}},
        "'if' at /",
    ),
    "not of a format": ({"not": {"properties": {"a": {"format": "time"}}}}, "'not' at /"),
    "not of eight items": (
        {"not": {"not": {"type": "array", "contains": {"type": "null"}}}},
        "'not' at /",
    ),
    "not of a oneOf": (
        {"not": {"not": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}},
        "'not' at /",
    ),
    "not of all but a word": (
        {"not": {"not": {"allOf": [{"enum": ["a"]}, {"type": ["object", "string", "null"]}]}}},
        "'not' at /",
    ),
    "not of itself": ({"properties": {"a": {"not": {"$ref": "#"}}}}, "'not' at /properties/a"),
    "not of an old const": (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "string",
            "not": {"const": "a"},
        },
        "nothing can satisfy",
    ),
    "anchors": (
        {
            "properties": {"p": {"$dynamicRef": "#n"}},
            "$defs": {
                "a": {"$dynamicAnchor": "n", "type": "string"},
                "b": {"$id": "http://x/b", "$dynamicAnchor": "n", "type": "integer"},
            },
        },
        r"'\$dynamicRef' at /properties/p whose anchor occurs more than once",
    ),
    "recursive anchors": (
        {
            "$schema": "https://json-schema.org/draft/2019-09/schema",
            "$recursiveAnchor": True,
            "properties": {
                "a": {"$recursiveRef": "#"},
                "b": {"$id": "http://x/b", "$recursiveAnchor": True},
            },
        },
        r"'\$recursiveRef' at /properties/a whose anchor occurs more than once",
    ),
    "multiples of 0": ({"multipleOf": 0}, "'multipleOf' at / must be a number greater than 0"),
    "counts": (
        {"minLength": 3, "maxLength": 2},
        "nothing can satisfy 'minLength' 3 and 'maxLength' 2 at /",
    ),
    "a bound that moves": (
        {
            "oneOf": [
                {"type": "integer", "minimum": 1},
                {"type": "integer", "maximum": 2**53 + 3},
            ]
        },
        "'oneOf' at /",
    ),
    "enum": (
        {"type": "string", "enum": [1]},
        "nothing satisfies both 'type' and 'enum' at /",
    ),
    "half a character": ({"const": {"\ud800": 1}}, "'const' at /"),
    "names of a format": (
        {
            "type": "object",
            "oneOf": [{"propertyNames": {"format": "uri-template"}}, {"required": ["{a%62}"]}],
        },
        "'oneOf' at /",
    ),
    "propertyNames beside patterns": (
        {"patternProperties": {"^a": {"type": "null"}}, "propertyNames": {"pattern": "b"}},
        "'propertyNames' at / beside 'patternProperties'",
    ),
    "a required name": (
        {"required": ["b"], "propertyNames": {"pattern": "^a"}},
        "nothing satisfies both 'required' and 'propertyNames' at /",
    ),
    "a number of properties of a pattern": (
        {"patternProperties": {"^a": {}}, "additionalProperties": False, "minProperties": 2},
        "'minProperties' at / above 1 beside 'patternProperties'",
    ),
    "unevaluatedProperties": (
        {"propertyNames": {"pattern": "^a"}, "unevaluatedProperties": False},
        "'unevaluatedProperties' at / beside 'propertyNames'",
    ),
    "a leap second": (
        {"type": "string", "oneOf": [{"format": "time"}, {"enum": ["22:59:60Z"]}]},
        "'oneOf' at /",
    ),
    "list": ([], "must be an object"),
}


def is_accepted(grammar, instance):
    matcher = grammar.matcher()
    text = json.dumps(instance, ensure_ascii=False).encode()
    return all(matcher.accept(token) for token in [*text, BACKEND.vocabulary.eos_token_ids[0]])


@pytest.mark.parametrize(("schema", "instances"), SCHEMAS, ids=lambda given: str(given)[:60])
def test_instances_are_accepted_exactly_if_they_are_valid(schema, instances):
    grammar = BACKEND.compile(StructuredOutputsParams(json=json.dumps(schema)))
    validator = judge(schema)
    for instance in instances:
        assert is_accepted(grammar, instance) == validator.is_valid(instance), instance


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_equivalent_is_refused_by_name(case):
    schema, message = REFUSED[case]
    with pytest.raises(GrammarError, match=message):
        normal_form(json.dumps(schema))


NARROWED = {
    "unevaluated": {
        "type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False,
        "anyOf": [{"properties": {"b": {"type": "integer"}}}, {"properties": {"c": {}}}]},
    "through a reference": {"$ref": "#/$defs/narrow"},
    "through allOf": {"allOf": [{"$ref": "#/$defs/narrow"}, {"type": "object"}]},
}  # fmt: skip


@pytest.mark.parametrize("case", NARROWED)
def test_what_is_narrower_than_a_branch_proves_nothing_of_it(case):
    other = {"type": "object", "required": ["b"], "properties": {"b": {"type": "integer"}}}
    schema = {"oneOf": [NARROWED[case], other], "$defs": {"narrow": NARROWED["unevaluated"]}}
    assert not judge(schema).is_valid({"b": 1})
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert not is_accepted(grammar, {"b": 1})
    assert is_accepted(grammar, {"a": 1})


def test_no_mark_of_the_translation_is_in_the_normal_form():
    schema = {
        "properties": {"x-narrowed": {"format": "time"}, "n": {"maximum": 2**60}},
        "propertyNames": {"pattern": "^[xn]"},
        "anyOf": [{"not": {"required": ["a"]}}, {"enum": [{"x-aside": 1}]}, {"$ref": "#/$defs/o"}],
        "$defs": {"o": {"oneOf": [{"type": "string"}, {"type": "null"}]}},
    }
    text = json.dumps(normal_form(schema))
    assert text.count("x-narrowed") == 1, "a name"
    assert text.count("x-aside") == 1, "a value"
    assert "x-names-only" not in text
    assert "x-widened" not in text


HOSTILE = {
    "deep": '{"items": ' * 10_000 + "{}" + "}" * 10_000,
    "wide": json.dumps({"anyOf": [{"const": i} for i in range(30_000)]}),
    "a large enum": json.dumps({"enum": list(range(100_000))}),
    "references in a circle": json.dumps(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "doubled": json.dumps(
        {"$ref": "#/$defs/d40", "$defs": {"d0": {"type": "null"}} | {
            f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 2} for i in range(1, 41)}}
    ),
    "repetitions": json.dumps({"pattern": "(((a{0,1000000000})*)*)*"}),
    "brackets": json.dumps({"pattern": "(" * 30_000 + ")" * 30_000}),
    "branches": json.dumps({"oneOf": [{"minimum": i} for i in range(3_000)]}),
    "negations": json.dumps({"not": {"anyOf": [{"enum": [f"a{i}", f"b{i}"]} for i in range(50)]}}),
    "not JSON": '{"type": ',
    "not a number": '{"minimum": NaN}',
    "a long reference": json.dumps({"$ref": "#/" + "a/" * 100_000}),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_schema_is_refused_or_translated_soon(case):
    started = time.process_time()
    with contextlib.suppress(GrammarError):
        json.dumps(normal_form(HOSTILE[case]))
    assert time.process_time() - started < 5, "seconds, on any machine"


def test_a_name_with_a_control_character_has_no_second_spelling():
    schema = {"properties": {"a\n": {"type": "integer"}}}
    matcher = BACKEND.compile(StructuredOutputsParams(json=schema)).matcher()
    assert all(matcher.accept(octet) for octet in rb'{"a\n":1')
    matcher.rollback(8)
    assert not all(matcher.accept(octet) for octet in rb'{"a\u000a":"x"}')
    with pytest.raises(GrammarError, match="control character"):
        BACKEND.check(StructuredOutputsParams(json=schema | {"required": ["a\0"]}))


def test_properties_come_in_the_order_of_the_schema():
    base = {"properties": {"a": {}}, "required": ["a"]}
    own = {"properties": {"b": {}}, "required": ["b"]}
    for schema, first in (({"allOf": [base], **own}, "a"), ({**own, "allOf": [base]}, "b")):
        grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
        assert is_accepted(grammar, {"a": 1, "b": 1}) is (first == "a")
        assert is_accepted(grammar, {"b": 1, "a": 1}) is (first == "b")
