"""Complements of schemas: types and strings are one alternative, and conditions are exact."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.schema_judge import judge
from quire.testing.structured_output import contract_vocabulary, sample_completion
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.schemas.other_words import other_words
from quire_structured_output.schemas.schema_complement import (
    ALL_TYPES,
    Complement,
    complement,
    complement_parts,
    whole_complement,
)

NO_STRING = ["object", "array", "number", "boolean", "null"]
NOT_A, NOT_B = (f"^(?:{other_words([word])})$" for word in "ab")
COMPLEMENTS = {
    "types and strings are one schema": (
        [{"enum": ["a"]}],
        [{"type": [*ALL_TYPES], "pattern": NOT_A}],
    ),
    "truth values stay apart": (
        [{"enum": ["a", True]}],
        [
            {"type": ["object", "array", "string", "number", "null"], "pattern": NOT_A},
            {"enum": [False]},
        ],
    ),
    "types alone": ([{"type": "string"}, {"type": NO_STRING}], [{"type": [*ALL_TYPES]}]),
    "duplicates are there once": (
        [{"required": ["a"]}, {"enum": ["a"]}, {"required": ["a", "b"]}, {"enum": ["a"]}],
        [
            {"type": [*ALL_TYPES], "pattern": NOT_A},
            {"type": "object", "properties": {"a": False}},
            {"type": "object", "properties": {"b": False}},
        ],
    ),
    "two patterns stay two": (
        [{"enum": ["a"]}, {"enum": ["b"]}],
        [{"type": [*ALL_TYPES], "pattern": NOT_A}, {"type": "string", "pattern": NOT_B}],
    ),
    "no strings where types allow all of them": (
        [{"enum": ["a"]}, {"type": "number"}],
        [{"type": [*ALL_TYPES]}],
    ),
    "types beside a pattern stay beside other types": (
        [{"allOf": [{"enum": ["a", None]}]}, {"type": ["object", "array", "string", "number"]}],
        [{"type": [*ALL_TYPES], "pattern": NOT_A}],
    ),
}


@pytest.mark.parametrize("case", COMPLEMENTS)
def test_the_complement_of_several_schemas(case):
    schemas, parts = COMPLEMENTS[case]
    found = complement({"allOf": schemas}, lambda schema: schema)
    assert found == Complement(parts, is_whole=True)


def resolve(schema):
    return schema


@pytest.mark.parametrize("schema", [{"type": "integer"}, {"type": "string", "pattern": "a"}])
def test_a_part_of_a_complement_is_not_the_whole(schema):
    assert complement_parts(schema, resolve)
    assert whole_complement(schema, resolve) is None


@pytest.mark.parametrize("schema", [{"minProperties": 2}, {"maxProperties": 1}])
def test_no_complement_counts_several_properties(schema):
    assert complement(schema, resolve) is None


def test_what_allows_everything_has_an_empty_complement():
    schema = {"type": list(ALL_TYPES), "minLength": 0, "items": {}, "properties": {"a": {}}}
    assert whole_complement(schema, resolve) == []


BACKEND = LLGuidanceBackend(contract_vocabulary())
COUNTS = st.integers(0, 2)
BOUNDS = st.integers(-2, 3) | st.sampled_from([0.5, -1.5, 2.0])
TYPES = st.sampled_from([*ALL_TYPES, "integer"])
LEAVES = {
    **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems"], COUNTS),
    **dict.fromkeys(["minProperties", "maxProperties"], st.integers(0, 1)),
    **dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], BOUNDS),
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "enum": st.lists(st.sampled_from(["", "a", "ab", None, True]), min_size=1, max_size=2),
    "required": st.lists(st.sampled_from("ab"), min_size=1, max_size=1),
    "multipleOf": st.sampled_from([2, 0.5]),
    "pattern": st.just("^a"),
}


def schemas(options):
    some = st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=3, unique=True)
    return some.flatmap(lambda words: st.fixed_dictionaries({w: options[w] for w in words}))


def keywords(inner):
    several = st.lists(inner, min_size=1, max_size=2)
    properties = st.dictionaries(st.sampled_from("ab"), inner, min_size=1)
    return {**LEAVES, "properties": properties, "allOf": several, "anyOf": several, "not": inner,
            "additionalProperties": inner, "items": inner}  # fmt: skip


CONDITIONS = st.recursive(schemas(LEAVES), lambda inner: schemas(keywords(inner)), max_leaves=4)
SCALARS = [None, True, False, -2, -1, 0, 1, 2, 3, 4, -1.5, 0.5, 1.5, 2.5, "", "a", "ab", "b", "bcd"]
SINGLE = [*SCALARS, [], {}, *([each] for each in SCALARS), *({"a": each} for each in SCALARS)]
SEVERAL = [[1, "a"], [None, 0.5, 1], {"a": "ab", "b": 1}, {"a": 3, "b": None}]


def is_accepted(grammar, text):
    matcher = grammar.matcher()
    tokens = [*text.encode(), BACKEND.vocabulary.eos_token_ids[0]]
    return all(matcher.accept(token) for token in tokens)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(CONDITIONS, st.none() | schemas(LEAVES), st.none() | schemas(LEAVES), st.integers(0, 99))
def test_a_condition_is_refused_or_exact(condition, then, otherwise, seed):
    schema = {"not": condition}
    if then is not None or otherwise is not None:
        branches = {"then": then, "else": otherwise}
        schema = {"if": condition} | {k: v for k, v in branches.items() if v is not None}
    try:
        grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    except GrammarError:
        return
    validator = judge(schema)
    for value in [*SINGLE, *SEVERAL]:
        is_valid = validator.is_valid(value)
        accepted = is_accepted(grammar, json.dumps(value))
        assert accepted == is_valid or (value in SEVERAL and not accepted), value
    try:
        text = sample_completion(grammar.matcher(), random.Random(seed), BACKEND.vocabulary)
    except AssertionError as error:
        if "no EOS token" in str(error):  # a walk at random may not find the end
            return
        raise
    assert validator.is_valid(json.loads(text)), text
