"""Grammars in GBNF: every text that one allows is allowed, and what is not GBNF is named."""

import random
import re

import pytest

from quire.errors import GrammarError
from quire.sampling_params import StructuredOutputsParams
from quire.testing.structured_output import contract_vocabulary, sample_completion
from quire_structured_output.gbnf.gbnf_lark import lark_of_gbnf
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

BACKEND = LLGuidanceBackend(contract_vocabulary())
END = BACKEND.vocabulary.eos_token_ids[0]
GRAMMARS = [  # with texts that it allows, and texts that it does not
    ('root ::= "a" [a-z] | "ab" "c"', ("ab", "ac", "abc"), ("a", "abd", "")),
    ('root ::= [a-z]* "a"', ("a", "ba", "aaa"), ("", "b")),
    ('root ::= word "bc"\nword ::= [a-z]+', ("abc", "bcbc"), ("bc", "abcd")),
    ('root ::= ("x" | "yy"){2,3} z\nz ::= "" | "-" z # c\n', ("xx", "xyy--"), ("x", "xxxx")),
    ('root ::= ( ) | "\\x41\\u00e9\\n"\n | [^a-z\\]]+ .', ("", "Aé\n", "!!z"), ("A", "!!]a")),
    ('root ::= root root | "a" | ""', ("", "aaa"), ("b",)),
    ('root ::= x root "b" | "a"\nx ::= "" | x', ("a", "abb"), ("b",)),
    ('root ::= "\\x00" [\\x00-\\x01]', ("\0\1",), ("\0a", "\0")),
    ("root ::=", ("",), ("a",)),
    ('root ::= a-b a_b\na-b ::= "1"\na_b ::= "2"', ("12",), ("11", "22")),
    ('root ::= start\nstart ::= "s"', ("s",), ("",)),
    ('root ::= "ab"{0} "c"{2,} ("" | ())*', ("cc", "cccc"), ("c", "abcc")),
    ("root ::= " + '("a" | "b" root (' * 100 + '"c"' + "))" * 100, ("a", "baa"), ("b", "aa")),
    ("root ::= [-a] [a-] [\\-a]", ("-a-", "a--"), ("b--",)),
    ('root ::= "\\U0001F600" [😀-😂]?', ("😀", "😀😁"), ("😁",)),
]
INVALID = {
    "": "does not begin with a rule",
    "root": "does not begin with a rule",
    'x ::= "a"': "no rule 'root'",
    "root ::= other": "the rule 'other' is not defined",
    'root ::= "a': "line 1: '\"a' is not understood",
    'root ::= "a"\nroot ::= "b"': "line 2: 'root' is not the name of a new rule",
    'root ::= "a"\n"x" ::= "b"': "is not the name of a new rule",
    'root ::= ("a"': "a group is not closed",
    'root ::= "a")': "groups are not closed",
    "root ::= " + "(" * 300: "nested more than 200 deep",
    'root ::= | * "a"': "nothing is before the '*'",
    'root ::= "a"*+': "nothing is before the '+'",
    "root ::= []": "no character is in",
    "root ::= [^\\x00-\\U0010FFFF]": "no character is in",
    'root ::= "a"{3,2}': "the numbers of {3,2} are out of order",
    "root ::= [z-a]": "out of order",
    'root ::= "\\q"': "the escape \\q has no meaning",
    'root ::= "\\ud800"': "is no character",
    "root ::= <think>": "is not understood",
}


def accepts(params, text):
    matcher = BACKEND.compile(params).matcher()
    return all(matcher.accept(token) for token in [*text.encode(), END])


@pytest.mark.parametrize(("grammar", "valid", "invalid"), GRAMMARS)
def test_a_grammar_allows_its_texts_and_no_others(grammar, valid, invalid):
    params = StructuredOutputsParams(grammar=grammar)
    for text in valid:
        assert accepts(params, text), text
    for text in invalid:
        assert not accepts(params, text), text


@pytest.mark.parametrize("grammar", INVALID)
def test_what_is_not_gbnf_is_refused_with_its_line(grammar):
    with pytest.raises(GrammarError, match=re.escape(INVALID[grammar])):
        lark_of_gbnf(grammar)


def test_sampled_completions_follow_the_grammar():
    params = StructuredOutputsParams(grammar='root ::= "(" root ")" | [ab]+ "b" | "ab" "c"')
    compiled = BACKEND.compile(params)
    for seed in range(20):
        text = sample_completion(compiled.matcher(), random.Random(seed), BACKEND.vocabulary)
        inner = text.strip("()")
        assert text.count("(") == text.count(")")
        assert inner == "abc" or (set(inner) <= {"a", "b"} and inner.endswith("b"))
