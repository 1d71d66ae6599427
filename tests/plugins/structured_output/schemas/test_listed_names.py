"""Closed objects whose patterns allow no name but the listed ones."""

import itertools
import json
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.schema_judge import judge
from quire.testing.structured_output import contract_vocabulary, sample_completion, satisfies
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.schemas.schema_normal_form import normal_form

BACKEND = LLGuidanceBackend(contract_vocabulary())
NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
BOTH = {"a": NUMBER, "b": NUMBER}
CLOSED = {"patternProperties": {"^[ab]$": {"minimum": 5}}, "additionalProperties": False}
EXHAUSTED = {
    "an enum of names": {"properties": BOTH, "propertyNames": {"enum": ["a", "b"]}},
    "a pattern of names": {"properties": BOTH, "propertyNames": {"pattern": "^[ab]$"}},
    "a closed pattern": {"properties": BOTH, **CLOSED},
    "a name that is forbidden": {
        "properties": {"a": False, "b": NUMBER},
        "patternProperties": {"^a$": {}},
        "additionalProperties": False,
    },
    "a required name": {
        "required": ["a"],
        "patternProperties": {"^a$": NUMBER},
        "additionalProperties": False,
    },
    "further names have a schema": {
        "properties": {"b": NUMBER},
        "required": ["a"],
        "propertyNames": {"enum": ["a", "b"]},
        "additionalProperties": {"type": "boolean"},
    },
    "the empty name": {"properties": {"": NUMBER}, "propertyNames": {"maxLength": 0}},
    "one of two patterns": {
        "properties": {"a": NUMBER},
        "patternProperties": {"^a$": {}, "^b$": False},
        "additionalProperties": False,
    },
    "a number of names": {
        "properties": BOTH,
        "propertyNames": {"enum": ["a", "b"]},
        "minProperties": 1,
    },
    "listed in allOf": {
        "allOf": [{"properties": {"a": NUMBER}}, {"properties": {"b": NUMBER}}],
        "propertyNames": {"enum": ["b", "a"]},
    },
    "listed beside allOf": {"properties": BOTH, "allOf": [CLOSED]},
    "listed in a reference": {
        "$ref": "#/$defs/x",
        "propertyNames": {"enum": ["b", "a"]},
        "$defs": {"x": {"properties": BOTH}},
    },
    "listed beside a reference": {
        "$ref": "#/$defs/x",
        "properties": BOTH,
        "$defs": {"x": {"propertyNames": {"enum": ["b", "a"]}}},
    },
}


def is_accepted(grammar, text):
    matcher = grammar.matcher()
    tokens = [*text.encode(), BACKEND.vocabulary.eos_token_ids[0]]
    return all(matcher.accept(token) for token in tokens)


def objects(names):
    """Yield objects whose names are in the order of the list."""
    values = (1, 7, True)
    for count in range(len(names) + 1):
        for some in itertools.combinations(names, count):
            for found in itertools.product(values, repeat=count):
                yield dict(zip(some, found, strict=True))


@pytest.mark.parametrize("schema", EXHAUSTED.values(), ids=EXHAUSTED)
def test_no_comma_is_allowed_where_no_name_is_left(schema):
    schema = {"type": "object", **schema}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    is_valid = satisfies(schema)
    for seed in range(40):
        text = sample_completion(grammar.matcher(), random.Random(seed), BACKEND.vocabulary)
        assert is_valid(text), text


@pytest.mark.parametrize("schema", EXHAUSTED.values(), ids=EXHAUSTED)
def test_objects_are_accepted_exactly_if_they_are_valid(schema):
    grammar = BACKEND.compile(StructuredOutputsParams(json={"type": "object", **schema}))
    validator = judge(schema)
    names = ["b", "a"] if schema.get("required") and "properties" in schema else ["", "a", "b", "c"]
    for instance in objects(names):
        accepted = is_accepted(grammar, json.dumps(instance))
        assert accepted == validator.is_valid(instance), instance


def test_a_pattern_of_which_names_are_left_keeps_any_order():
    schema = {"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "^[abc]$"}}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert is_accepted(grammar, '{"a": 1, "c": 2, "b": 3}')


def test_the_schema_of_a_dropped_pattern_is_written_once():
    inner = {"type": "object", "properties": {"x": {"type": "string"}}}
    schema = {"properties": {"a": {}, "b": {}}, "patternProperties": {"^[ab]$": inner}}
    form = normal_form({**schema, "additionalProperties": False})
    assert form["properties"] == {name: {"$ref": "#/$defs/r0"} for name in "ab"}
    assert "patternProperties" not in form
    assert form["$defs"] == {"r0": inner}


def test_a_dropped_pattern_leaves_room_for_least_properties():
    names = {"propertyNames": {"enum": ["a", "b"]}, "minProperties": 2}
    schema = {"type": "object", "properties": BOTH, **names}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert is_accepted(grammar, '{"a": 1, "b": 2}')
    assert not is_accepted(grammar, '{"b": 2}')


PARTS = st.sampled_from([{}, NUMBER, {"type": "boolean"}, {"minimum": 5}, False])
NAMES = st.sampled_from(["a", "b", "c"])
PATTERNS = st.sampled_from(["^[ab]$", "^a$", "^b$", "^(a|b|c)$", "^[^]?$", "^c{1,2}$"])
LISTED = st.fixed_dictionaries(
    {"properties": st.dictionaries(NAMES, PARTS, max_size=3)},
    optional={"required": st.lists(NAMES, max_size=2, unique=True), "additionalProperties": PARTS},
)
NAMED = st.fixed_dictionaries(
    {"propertyNames": st.lists(NAMES, min_size=1).map(lambda names: {"enum": names})}
) | st.fixed_dictionaries(
    {"propertyNames": PATTERNS.map(lambda regex: {"pattern": regex})}
) | st.fixed_dictionaries(
    {
        "patternProperties": st.dictionaries(PATTERNS, PARTS, min_size=1, max_size=2),
        "additionalProperties": st.just(False),
    }
)  # fmt: skip
SMALL = st.builds(lambda listed, named: listed | named, LISTED, NAMED) | st.builds(
    lambda listed, named: listed | {"allOf": [named]}, LISTED, NAMED
)


@settings(max_examples=150, deadline=None)
@given(SMALL, st.integers(0, 99))
def test_a_closed_object_has_no_dead_end(schema, seed):
    schema = {"type": "object", **schema}
    try:
        grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    except GrammarError:
        assume(False)
    is_valid, validator = satisfies(schema), judge(schema)
    for child in range(3):
        rng = random.Random(100 * seed + child)
        text = sample_completion(grammar.matcher(), rng, BACKEND.vocabulary)
        assert is_valid(text), text
    for instance in objects([*dict.fromkeys([*schema["properties"], *schema.get("required", [])])]):
        accepted = is_accepted(grammar, json.dumps(instance))
        assert accepted == validator.is_valid(instance), instance
