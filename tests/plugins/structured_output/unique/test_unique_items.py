"""Unique items of every kind, in every place, in any tokenization: never twice, and no dead end."""

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import read_mask, satisfies
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

FRAGMENTS = (
    *('"a"', '"b"', ",", "[", "]", "{", "}", ":", "true", "null", "0", "1", "2"),
    *("1.0", "-0", "1e0", '"a":1', '["a",', " ", "\\n"),
)
MAX_TOKENS = 60


def vocabulary_of(seed):
    """Return a vocabulary of all bytes, and of random joints of what JSON is made of."""
    rng = random.Random(seed)
    joints = {"".join(rng.choices(FRAGMENTS, k=rng.randint(1, 6))).encode() for _ in range(150)}
    pieces = {joint[: rng.randint(1, 8)] for joint in joints} | joints
    octets = [bytes([octet]) for octet in range(256)]
    tokens = {token: (i,) for i, token in enumerate([*octets, *sorted(pieces - set(octets))])}
    end = len(tokens)
    return Vocabulary(tokens=tokens, eos_token_ids=(end,), size=end + 1)


BACKENDS = [LLGuidanceBackend(vocabulary_of(seed)) for seed in range(3)]


def accepts(backend, schema, text):
    """Return whether a text is accepted in single bytes, and in the longest tokens."""
    vocabulary = backend.vocabulary
    grammar = backend.compile(StructuredOutputsParams(json=json.dumps(schema)))
    ids = {token: token_ids[0] for token, token_ids in vocabulary.tokens.items()}
    decisions = set()
    for longest in (1, 12):
        matcher, at = grammar.matcher(), 0
        octets, is_accepted = text.encode(), True
        while at < len(octets) and is_accepted:
            size = next(n for n in range(longest, 0, -1) if octets[at : at + n] in ids)
            is_accepted = matcher.accept(ids[octets[at : at + size]])
            at += size
        decisions.add(is_accepted and matcher.accept(vocabulary.eos_token_ids[0]))
    assert len(decisions) == 1, text
    return decisions.pop()


UNIQUE = {"type": "array", "uniqueItems": True}
NAMES = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
CASES = [
    (UNIQUE, ["[]", "[1,2]", "[1,true]", "[[1],[1,1]]", '[{"a":1,"b":2},{"b":2,"a":3}]'],
     ["[1,1]", "[1, 1.0]", "[0,-0]", "[100,1e2]", "[[1],[1]]", '[{"a":1,"b":2},{"b":2,"a":1}]',
      '[{"a":1,"a":2},{"a":2}]', '["a" , "a"]', "[null,null]", '["\\n","\\n"]']),
    ({"items": NAMES}, ['[["a"],["a"]]', '[["a","b"]]'], ['[["a","b","a"]]']),
    (UNIQUE | {"items": NAMES}, ['[["a"],["b"]]', '[["a","b"],["a"]]'],
     ['[["a"],["a"]]', '[["a","a"]]']),
    ({"properties": {"a": NAMES, "b": {"type": "array"}}}, ['{"a":["x"],"b":[1,1]}', '{"c":[1,1]}'],
     ['{"a":["x","x"]}']),
    ({"patternProperties": {"^a": NAMES}}, ['{"b":[1,1]}', '{"ab":["x"]}'], ['{"ab":["x","x"]}']),
    ({"additionalProperties": NAMES, "properties": {"a": {}}}, ['{"a":[1,1]}'],
     ['{"b":["x","x"]}']),
    ({"prefixItems": [{}, NAMES], "items": {}}, ["[[1,1],[],[1,1]]"], ['[1,["a","a"]]']),
    ({"anyOf": [{"type": "string"}, NAMES]}, ['"a"', '["a"]'], ['["a","a"]']),
    ({"$ref": "#/$defs/a",
      "$defs": {"a": {"properties": {"x": NAMES, "y": {"$ref": "#/$defs/a"}}}}},
     ['{"x":["a"],"y":{"x":["a"]}}'], ['{"y":{"y":{"x":["a","a"]}}}']),
    (UNIQUE | {"items": {"type": "integer", "minimum": 0, "maximum": 12}}, ["[0,1,10,12,2]"],
     ["[0,1,0]", "[11,11]"]),
    (UNIQUE | {"items": {"type": "string", "maxLength": 1}}, ['["","a"]'], ['["",""]']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda given: str(given)[:50])
def test_an_item_may_not_be_repeated(schema, valid, invalid):
    for backend in BACKENDS[:2]:
        for text in valid:
            assert accepts(backend, schema, text), text
        for text in invalid:
            assert not accepts(backend, schema, text), text


def test_an_array_goes_on_only_if_another_item_is_left():
    schema = UNIQUE | {"items": {"enum": ["a", "ab", "b"]}, "minItems": 1}
    backend = BACKENDS[0]
    matcher = backend.compile(StructuredOutputsParams(json=schema)).matcher()

    def following():
        return {chr(i) for i in read_mask(matcher, backend.vocabulary.size) if i < 256}

    for token in b'["ab","a",':
        assert matcher.accept(token)
    assert following() == {'"', " "}
    assert matcher.accept(ord('"'))
    assert following() == {"b"}
    for token in b'b"':
        assert matcher.accept(token)
    assert following() == {"]", " "}
    matcher.rollback(6)
    assert following() == {"a", "b"}


ITEMS = [
    {"enum": ["a", "ab", "b", 1, 1.5, None, ["a"], {"a": 1}]},
    {"type": "string", "maxLength": 1},
    {"type": "string", "pattern": "^[ab]{1,2}$"},
    {"type": "string"},
    {"type": "integer", "minimum": -1, "maximum": 11},
    {"type": "integer"},
    {"type": "number", "multipleOf": 0.5, "minimum": 0},
    {"type": ["boolean", "null"]},
    {"type": "object", "properties": {"a": {"enum": ["a", "b"]}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"enum": [1, 2]}},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    {},
]
ARRAYS = st.recursive(
    st.builds(
        lambda item, low: UNIQUE | {"items": item, "minItems": low},
        st.sampled_from(ITEMS), st.integers(0, 2),
    ),
    lambda inner: st.one_of(
        st.builds(lambda item: UNIQUE | {"items": item}, inner),
        st.builds(lambda one: {"type": "array", "items": one, "maxItems": 2}, inner),
        st.builds(lambda one: {"type": "object", "properties": {"a": one}, "required": ["a"],
                               "additionalProperties": False}, inner),
        st.builds(lambda one, two: {"anyOf": [one, two, {"type": "null"}]}, inner, inner),
    ),
    max_leaves=2,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(ARRAYS, st.integers(0, 999), st.sampled_from(BACKENDS))
def test_chaos_finds_no_repetition_and_no_dead_end(schema, seed, backend):
    vocabulary, rng = backend.vocabulary, random.Random(seed)
    matcher = backend.compile(StructuredOutputsParams(json=schema)).matcher()
    octets = {i: token for token, ids in vocabulary.tokens.items() for i in ids}
    written: list[int] = []
    while len(written) < MAX_TOKENS:
        allowed = read_mask(matcher, vocabulary.size)
        assert allowed, b"".join(octets[i] for i in written)
        for token_id in rng.sample(range(vocabulary.size), 12):
            assert matcher.accept(token_id) == (token_id in allowed)
            if token_id in allowed:
                matcher.rollback(1)
        chosen = rng.choice(sorted(allowed))
        assert matcher.accept(chosen)
        if chosen in vocabulary.eos_token_ids:
            text = b"".join(octets[i] for i in written).decode()
            assert satisfies(schema)(text), text
            return
        written.append(chosen)
        if rng.random() < 0.2:
            count = rng.randint(1, len(written))
            matcher.rollback(count)
            del written[-count:]


def test_an_array_that_can_have_no_further_item_is_an_error():
    items = [{"enum": [1, 2]}, {"const": 1}]
    schema = {"prefixItems": items, "minItems": 2, "items": False} | UNIQUE
    backend = BACKENDS[0]
    matcher = backend.compile(StructuredOutputsParams(json=schema)).matcher()
    assert all(matcher.accept(octet) for octet in b"[1 ")
    with pytest.raises(GrammarError, match="'uniqueItems' needs another item"):
        read_mask(matcher, backend.vocabulary.size)
    assert accepts(backend, schema, "[2, 1]")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 30)
    | st.floats(-2, 2)
    | st.text('ab"\\\n é', max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2)
    ),
    max_leaves=3,
)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(VALUES, max_size=5), st.sampled_from(BACKENDS))
def test_an_array_is_accepted_exactly_if_its_items_differ(instance, backend):
    text = json.dumps(instance, ensure_ascii=False)
    assert accepts(backend, UNIQUE, text) == satisfies(UNIQUE)(text), text
