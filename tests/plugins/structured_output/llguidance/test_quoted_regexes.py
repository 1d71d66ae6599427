"""Regexes in JSON: what they exclude cannot be written with an escape, either."""

import json
import random

import pytest

from quire.sampling_params import StructuredOutputsParams
from quire.testing.schema_judge import judge
from quire.testing.structured_output import contract_vocabulary, read_mask
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend
from quire_structured_output.llguidance.quoted_regexes import with_quotable_regexes

BACKEND = LLGuidanceBackend(contract_vocabulary())
END = BACKEND.vocabulary.eos_token_ids[0]
STRINGS = ["", "a", '"', "\\", 'a"b', "a\\b", "<", "/", "\n", "\x01", "\x1f", "é", ":", '\\"', "a'"]
EXCLUDING = [
    '^[^"]*$', r"^[^\\]+$", '^[^"<>]+$', r'^[^/\\:*?"<>|]+$', r"^[^\s]$", r"^(?:[^a\"]|\d)+$",
    r'^[^"\p{L}]+$', r"^\p{Cc}+$", r"^\P{L}$", r"^[\0-\x1fa]*$",
    r'^"[^"]*"$', r"^\D*$", r"^[^\n\"]*$",
]  # fmt: skip


def spellings(text):
    """Return JSON strings for a text, without and with escapes."""
    escaped = "".join(f"\\u{ord(char):04x}" if char < " " else char for char in json.dumps(text))
    return [json.dumps(text), json.dumps(text, ensure_ascii=False), escaped]


def is_accepted(grammar, text):
    matcher = grammar.matcher()
    return all(matcher.accept(token) for token in [*text.encode(), END])


def random_completion(grammar, rng):
    """Return a completion of random bytes, of which escapes are preferred; None: too long."""
    matcher, text = grammar.matcher(), b""
    for _ in range(60):
        allowed = sorted(read_mask(matcher))
        if END in allowed and rng.random() < 0.5:
            return text
        octets = [token for token in allowed if token < 256]
        liked = [octet for octet in octets if octet in b'\\"nu01bf,:}]']
        octet = rng.choice(liked if liked and rng.random() < 0.7 else octets or [END])
        if octet == END:
            return text
        assert matcher.accept(octet)
        text += bytes([octet])
    return None


def as_value(pattern):
    return {"type": "string", "pattern": pattern}


def as_pattern_of_names(pattern):
    return {"type": "object", "patternProperties": {pattern: {"type": "integer"}},
            "additionalProperties": {"type": "null"}}  # fmt: skip


def as_names(pattern):
    return {"type": "object", "propertyNames": {"pattern": pattern},
            "additionalProperties": {"type": "integer"}}  # fmt: skip


SCHEMAS = [form(pattern) for form in (as_value, as_pattern_of_names, as_names)
           for pattern in EXCLUDING]  # fmt: skip
SCHEMAS += [
    as_value(r"^(?:[\x01-\x1f]|\0)+$"),  # alternatives that the parser joins
    {"not": {"enum": ['"']}, "type": "string"},
    {"not": {"enum": ["\\", "a", 'a"']}, "type": "string"},
    {"type": "array", "items": as_value('^[^"]*$'), "uniqueItems": True},
    {"type": "string", "minLength": 1, "maxLength": 3, "pattern": r"^[^\\]*$"},
    {"type": "string", "allOf": [as_value(r"^[^\\]*$"), as_value('^[^"]*$')]},
    {"type": "string", "oneOf": [{"const": '"'}, as_value('^[^"]*$')]},
    {"$ref": "#/$defs/pattern", "$defs": {"pattern": as_value('^[^"]*$')}},
    {"type": "object", "properties": {"enum": as_value('^[^"]*$'), '"': {"type": "null"}},
     "additionalProperties": {"type": "integer"}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda given: json.dumps(given)[:90])
def test_random_bytes_are_valid(schema):
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    rng, is_valid = random.Random(7), judge(schema).is_valid
    found = [random_completion(grammar, rng) for _ in range(30)]
    assert any(found)
    for text in filter(None, found):
        assert is_valid(json.loads(text)), text


@pytest.mark.parametrize("pattern", EXCLUDING)
def test_strings_are_accepted_exactly_if_they_match(pattern):
    grammar = BACKEND.compile(StructuredOutputsParams(json=as_value(pattern)))
    is_valid = judge(as_value(pattern)).is_valid
    for text in STRINGS:
        found = [is_accepted(grammar, spelling) for spelling in spellings(text)]
        assert any(found) == is_valid(text), text


@pytest.mark.parametrize("pattern", EXCLUDING)
def test_names_are_accepted_exactly_if_they_match(pattern):
    schema = as_pattern_of_names(pattern)
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    is_valid = judge(schema).is_valid
    for name in STRINGS:
        has_spelling = not any(char in name for char in "\x01\x1f")  # beside additional names
        for value in (1, None):
            found = [is_accepted(grammar, f"{{{each}: {json.dumps(value)}}}")
                     for each in spellings(name)]  # fmt: skip
            assert any(found) == (has_spelling and is_valid({name: value})), (name, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"patternProperties": {"^a": {"type": "integer"}}},
        {"not": {"required": ["a"]}},
        {"items": {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"type": "object"}]}},
    ],
    ids=json.dumps,
)
def test_an_additional_name_has_no_second_spelling(schema):
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    text = '[{"%s": "x"}]' if "items" in schema else '{"%s": "x"}'
    assert is_accepted(grammar, text % "b")
    assert not is_accepted(grammar, text % "\\u0061")
    assert not is_accepted(grammar, text % "a")


def test_a_line_break_of_a_pattern_has_a_short_escape():
    schema = {"properties": {"a": {"pattern": "^a\\nb\\t$"}}}
    grammar = BACKEND.compile(StructuredOutputsParams(json=schema))
    assert is_accepted(grammar, r'{"a": "a\nb\t"}')


def test_names_with_nul_are_not_additional_ones():
    grammar = BACKEND.compile(StructuredOutputsParams(json=as_pattern_of_names('^[^"]*$')))
    assert not is_accepted(grammar, '{"a\\u0000": null}')
    assert is_accepted(grammar, '{"\\"": null}')


def test_sets_with_all_characters_stay():
    schema = {"pattern": r"^(?:[\x{0}-\x{10ffff}]*a)$", "enum": ["[^a]"]}
    assert with_quotable_regexes(schema) == schema
