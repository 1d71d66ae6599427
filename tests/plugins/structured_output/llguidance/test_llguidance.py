"""The llguidance backend by the kit; context-free grammars, and what is refused in them."""

import json
import random
import re

import pytest

from quire.errors import GrammarError
from quire.interfaces.structured_output import Vocabulary
from quire.interfaces.tool_parsing import CallGrammar, CallShape, SchemaPiece
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import (
    StructuredOutputContract,
    contract_vocabulary,
    read_mask,
    sample_completion,
)
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

BACKEND = LLGuidanceBackend(contract_vocabulary())
END = BACKEND.vocabulary.eos_token_ids[0]
NESTED = """
start: pair
pair: "(" pair ")" | WORD
WORD: /[ab]{1,3}/
"""
GBNF = """
root ::= "(" root ")" | word
word ::= [ab] [ab]?
"""


class TestLLGuidance(StructuredOutputContract):
    backend = LLGuidanceBackend
    constraints = frozenset(
        {"json", "json_object", "regex", "choice", "grammar", "structural_tag", "calls"}
        | {"calls_in_text"}
    )


def accepts(params, text):
    matcher = BACKEND.compile(params).matcher()
    return all(matcher.accept(token) for token in [*text.encode(), END])


@pytest.mark.parametrize("grammar", [NESTED, GBNF])
def test_a_context_free_grammar_is_followed(grammar):
    params = StructuredOutputsParams(grammar=grammar)
    for text in ("a", "((ab))", "(((b)))"):
        assert accepts(params, text), text
    for text in ("", "(a", "((a)", "c", "(a))"):
        assert not accepts(params, text), text
    compiled = BACKEND.compile(params)
    for seed in range(20):
        text = sample_completion(compiled.matcher(), random.Random(seed), BACKEND.vocabulary)
        inner = text.strip("()")
        assert re.fullmatch("[ab]{1,3}", inner)
        assert text.count("(") == text.count(")")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "empty"),
        ("begin: /a/", "no rule 'start'"),
        ("%llguidance {}\nstart: /a/", "the directive %llguidance"),
        ("%import common.WORD\nstart: WORD", "the directive %import"),
        ("start: <|end|>", "special token"),
        ("start: <[5]>", "special token"),
        ('start[temperature=2]: "a"', "a rule with"),
        ('start: "' + "a" * 70_000 + '"', "70009 characters"),
        ("start: " + "(" * 300 + '"a"' + ")" * 300, "nested more than"),
        ("start: other", "cannot be compiled"),
        ("root ::= ((", "not valid|cannot be compiled"),
        ("start: \ud800", "lone surrogate"),
    ],
)
def test_what_is_not_about_text_is_refused_by_name(grammar, message):
    with pytest.raises(GrammarError, match=message):
        BACKEND.compile(StructuredOutputsParams(grammar=grammar))


def test_what_looks_like_a_directive_in_a_text_is_allowed():
    params = StructuredOutputsParams(grammar='start: "<b> %import" /<[a-z]>/')
    assert accepts(params, "<b> %import<x>")


def test_a_schema_in_a_grammar_is_followed_as_one_by_itself():
    grammar = 'start: "<" %json {"type": "string", "format": "date"} "]" end // "a"\nend: "<"?'
    params = StructuredOutputsParams(grammar=grammar)
    assert accepts(params, '<"2024-02-29"]')
    assert accepts(params, '<"2024-02-29"]<')
    assert not accepts(params, '<"2023-02-29"]')
    assert not accepts(params, "<1]")


def test_left_recursion_is_no_problem():
    params = StructuredOutputsParams(grammar='start: start "," "a" | "a"')
    assert accepts(params, "a,a,a")
    assert not accepts(params, "a,")


@pytest.mark.parametrize("grammar", ["start: start", 'root ::= root "a"', "start: /[^\\s\\S]/"])
def test_a_grammar_that_allows_no_text_fails_with_the_reason(grammar):
    matcher = BACKEND.compile(StructuredOutputsParams(grammar=grammar)).matcher()
    with pytest.raises(GrammarError, match="allows no text here"):
        read_mask(matcher, BACKEND.vocabulary.size)


def test_a_text_that_the_vocabulary_cannot_spell_fails_with_the_reason():
    backend = LLGuidanceBackend(Vocabulary({b"a": [0], b"c": [1]}, (2,), 3))
    matcher = backend.compile(StructuredOutputsParams(regex="ab")).matcher()
    assert read_mask(matcher, 3) == {0}
    assert matcher.accept(0)
    with pytest.raises(GrammarError, match="the model has no tokens for it"):
        read_mask(matcher, 3)


def test_every_spelling_of_a_forced_text_is_allowed():
    matcher = BACKEND.compile(StructuredOutputsParams(choice=("true",))).matcher()
    allowed = read_mask(matcher, BACKEND.vocabulary.size)
    assert {ord("t"), *BACKEND.vocabulary.tokens[b"true"]} <= allowed


def test_a_regex_may_have_a_slash_and_a_line_end():
    for regex, text in (("a/b\nc", "a/b\nc"), (r"\/\n", "/\n"), (r"\\/", "\\/")):
        assert accepts(StructuredOutputsParams(regex=regex), text), regex


def test_a_tool_with_a_refused_schema_is_named():
    shape = CallShape("look", ("look(", SchemaPiece({"maxContains": 1, "contains": {}}), ")"))
    with pytest.raises(GrammarError, match=r"the tool 'look'.*'maxContains'"):
        BACKEND.check(StructuredOutputsParams(calls=CallGrammar((shape,))))


def test_a_forced_call_has_no_argument_that_the_tool_does_not_declare():
    opened = {"properties": {"a": {"type": "integer"}}}
    for schema, is_open in ((opened, False), (opened | {"additionalProperties": True}, True)):
        shape = CallShape("look", ("look(", SchemaPiece(schema | {"type": "object"}), ")"))
        params = StructuredOutputsParams(calls=CallGrammar((shape,)))
        assert accepts(params, 'look({"a": 1})')
        assert accepts(params, 'look({"a": 1, "b": 2})') is is_open


def test_a_call_may_have_unique_items_of_a_short_enum():
    kinds = {"type": "array", "items": {"$ref": "#/$defs/kind"}, "uniqueItems": True, "minItems": 1}
    kind = {"enum": ["a", "b", 1]}
    schema = {"type": "object", "properties": {"kinds": kinds}, "$defs": {"kind": kind}}
    shape = CallShape("look", ("look(", SchemaPiece(schema), ")"))
    params = StructuredOutputsParams(calls=CallGrammar((shape,)))
    assert accepts(params, 'look({"kinds": ["b", 1, "a"]})')
    for wrong in ('["a", "a"]', "[]", '["c"]'):
        assert not accepts(params, f'look({{"kinds": {wrong}}})')
    shape = CallShape("look", (SchemaPiece({"properties": {"x": {"uniqueItems": True}}}),))
    with pytest.raises(GrammarError, match=r"the tool 'look'.*'uniqueItems'"):
        BACKEND.check(StructuredOutputsParams(calls=CallGrammar((shape,))))


def test_a_schema_may_be_recursive():
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["children"],
        "additionalProperties": False,
    }
    params = StructuredOutputsParams(json=tree)
    assert accepts(params, json.dumps({"children": [{"children": []}]}))
    assert not accepts(params, json.dumps({"children": [{}]}))
