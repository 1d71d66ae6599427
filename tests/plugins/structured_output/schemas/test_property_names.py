"""`propertyNames` beside other keywords of objects."""

import json

import pytest

from quire.sampling_params import StructuredOutputsParams
from quire.testing.schema_judge import judge
from quire.testing.structured_output import contract_vocabulary
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

BACKEND = LLGuidanceBackend(contract_vocabulary())
OBJECTS = [
    {}, {"": 1}, {"a": 1}, {"a": "x"}, {"ab": "x"}, {"ab": 1}, {"b": "x"}, {"b": 1},
    {"a": 1, "ab": "x"}, {"a": 1, "ab": 1}, {"a": 1, "b": "x"},
]  # fmt: skip
SCHEMAS = [
    {"propertyNames": {"enum": [1, 2]}},
    {"propertyNames": {"const": None}},
    {"propertyNames": {"enum": [1, ""]}},
    {"properties": {"a": {"type": "integer"}, "b": {}}, "propertyNames": {"pattern": "^a"}},
    {"properties": {"a": {"type": "integer"}, "b": {}}, "propertyNames": {"pattern": "^a"},
     "additionalProperties": {"type": "string"}},
    {"properties": {"a": {"type": "integer"}, "b": {}}, "propertyNames": {"pattern": "^a"},
     "additionalProperties": False},
    {"properties": {"a": {"type": "integer"}}, "propertyNames": {"enum": ["a", "ab"]},
     "additionalProperties": {"type": "string"}, "minProperties": 1},
    {"propertyNames": {"minLength": 2}, "additionalProperties": {"type": "string"}},
    {"properties": {"a": {}}, "required": ["a"], "propertyNames": {"maxLength": 1},
     "additionalProperties": {"type": "string"}},
]  # fmt: skip


def is_accepted(grammar, instance):
    matcher = grammar.matcher()
    octets = json.dumps(instance).encode()
    return all(matcher.accept(token) for token in [*octets, BACKEND.vocabulary.eos_token_ids[0]])


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_objects_are_accepted_exactly_if_they_are_valid(schema):
    grammar = BACKEND.compile(StructuredOutputsParams(json={"type": "object", **schema}))
    validator = judge(schema)
    for instance in OBJECTS:
        assert is_accepted(grammar, instance) == validator.is_valid(instance), instance
