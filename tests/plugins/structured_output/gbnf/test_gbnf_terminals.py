"""Terminals of a grammar in GBNF: no text is lost or gained, whatever the grammar."""

import random
import re

import pytest
from gbnf_recogniser import LETTERS, gbnf_of, grammars, is_allowed
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from quire.interfaces.structured_output import Vocabulary
from quire_structured_output.gbnf import gbnf_terminals
from quire_structured_output.gbnf.gbnf_grammar import ROOT
from quire_structured_output.gbnf.gbnf_lark import lark_of_gbnf, written
from quire_structured_output.gbnf.gbnf_syntax import parse_gbnf
from quire_structured_output.llguidance.llguidance import LLGuidanceBackend

LONGER = [a + b for a in LETTERS for b in (*LETTERS, "ab", "ba", "aa", "bé")]
TOKENS = [*(bytes([i]) for i in range(256)), *(each.encode() for each in (*"éè", *LONGER))]
TOKENS.append("aé".encode()[:2])
END = len(TOKENS)
BACKEND = LLGuidanceBackend(
    Vocabulary({token: [i] for i, token in enumerate(TOKENS)}, (END,), END + 1)
)
IDS = {token: i for i, token in enumerate(TOKENS)}
MAX_LENGTH = 4


class Reader:
    """A grammar in Lark, read from its start for each text."""

    def __init__(self, lark):
        self._compiled = BACKEND.load(lark.encode())

    def mask(self, tokens):
        """Return the tokens that may follow some tokens; None: the grammar cannot go on."""
        matcher = self._compiled.matcher()
        assert all(matcher.accept(IDS[token]) for token in tokens)
        words = memoryview(bytearray((END + 32) // 32 * 4)).cast("I")
        matcher.fill_bitmask(words)
        return {i for i in range(END + 1) if words[i // 32] >> i % 32 & 1}


def by_characters(text, root=ROOT):
    grammar = parse_gbnf(text)
    return written(grammar, grammar.rules[root], {})


def texts_of(is_text, merged, plain):
    """Return the texts of some length; every mask of both on the way must be the same."""
    found, pending = [], [""]
    while pending:
        text = pending.pop()
        octets = [bytes([each]) for each in text.encode()]
        mask = merged.mask(octets)
        assert mask == plain.mask(octets), text
        assert (END in mask) == is_text(text), text
        found += [text] if END in mask else []
        if len(text) < MAX_LENGTH:
            pending += [text + each for each in LETTERS if IDS[each.encode()] in mask]
    return found


def tokenized(text, rng):
    """Return one of the many tokenizations of a text."""
    octets, tokens = text.encode(), []
    while octets:
        sizes = [n for n in range(1, len(octets) + 1) if octets[:n] in IDS]
        tokens.append(octets[: rng.choice(sizes)])
        octets = octets[len(tokens[-1]) :]
    return tokens


def check(is_text, lark, plain):
    """Check that a grammar allows the same as it does by characters, in any tokenization."""
    merged, rng = Reader(lark), random.Random(0)
    for found in texts_of(is_text, merged, Reader(plain)):
        for _ in range(3):
            assert END in merged.mask(tokenized(found, rng)), found


MERGED = {  # grammars with terminals, and how many
    'root ::= "\\"" ([^"\\\\] | "\\\\" [nt"])* "\\"" ws\nws ::= ([ \\t] ws)?': 1,
    'root ::= "(" root ")" | digits\ndigits ::= [0-9] digits | [0-9]': 3,
    "root ::= digits\ndigits ::= digits [0-9] | [0-9]": 1,
    'root ::= "[" ws (root ("," ws root)*)? "]" ws\nws ::= [ \\n]*': 3,
    'root ::= ("if" | "iffy") " " root "." | "x"': 3,
    'root ::= "a"? root "b" | "c"{1,3}': 3,
}
NOT_MERGED = {  # grammars, and texts of which no terminal may match the whole
    'root ::= [a-z]* "a" root "!" | "."': "bb",
    'root ::= word "a" root "!" | "."\nword ::= [a-z] word | [a-z]': "bb",
    'root ::= "ab" root "c" | "a" root | "b"': "ab",
    'root ::= [é]+ "è" root "!" | "."': "éé",  # their first bytes are the same
    'root ::= "(" root ")" | [ab]* "a" [ab]{12}': "a" * 13,  # 2 ** 12 states
    'root ::= ("." root "." | [a-z] [a-z]?)*': "bb",
    'root ::= ("a" root "c")? x "d"\nx ::= "b" | "bdd"': "bdd",
}


@pytest.mark.parametrize("grammar", MERGED)
def test_what_is_regular_is_one_terminal(grammar):
    assert len(re.findall(r"/[^/]+/", lark_of_gbnf(grammar))) == MERGED[grammar]


@pytest.mark.parametrize("grammar", NOT_MERGED)
def test_a_terminal_that_could_hide_a_text_is_divided(grammar):
    regexes = re.findall(r"/([^/]+)/", lark_of_gbnf(grammar))
    written = [re.sub(r"\\x\{(\w+)\}", _python_escape, each) for each in regexes]
    assert regexes
    assert not any(re.fullmatch(each, NOT_MERGED[grammar]) for each in written)


def _python_escape(found):
    return f"\\U{int(found[1], 16):08x}"


TOO_LARGE = {  # grammars that are not searched for terminals, or not to the end
    "too many parts": 'root ::= "' + "a" * 10_001 + '"',
    "too many terminals that go on": "root ::= " + "([a-z]+ root " * 150 + ")*" * 150,
    "too many that begin alike": "root ::= (" + " | ".join(["[a-z]+ root [a-z]"] * 300) + ")?",
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_too_much_work_leaves_characters(kind):
    regexes = re.findall(r"/([^/]+)/", lark_of_gbnf(TOO_LARGE[kind]))
    assert all(re.fullmatch(r"[a-z]|\[a-z\]", each) for each in regexes)


def test_the_search_is_stopped_by_its_work_alone(monkeypatch):
    text = 'root ::= "(" root ")" | [a-z]+ "-" [0-9]{1,20}'
    assert lark_of_gbnf(text) != by_characters(text)
    monkeypatch.setattr(gbnf_terminals, "MAX_WORK", 10)
    assert lark_of_gbnf(text) == by_characters(text)


@settings(max_examples=20, deadline=None)
@given(grammars())
def test_terminals_change_no_text_and_no_mask(rules):
    text = gbnf_of(rules)
    lark, plain = lark_of_gbnf(text), by_characters(text)
    event(f"is merged: {lark != plain}")
    check(lambda each: is_allowed(rules, each), lark, plain)


@settings(max_examples=12, deadline=None)
@given(grammars(), st.sampled_from(["a", "ab", "éb"]))
@example(
    {"root": ("seq", [("text", "a"), ("text", "aa"), ("times", ("rule", "root"), 0, None)])}, "a"
)
def test_an_end_and_what_follows_it_change_no_text_either(rules, end):
    anything = ("times", ("chars", LETTERS), 0, None)
    rules |= {"whole": ("seq", [("rule", "root"), ("text", end), anything])}
    lark = f"start: inner_start /[{LETTERS}]/*\n{lark_of_gbnf(gbnf_of(rules), 'inner_', [end])}"
    plain = by_characters(gbnf_of(rules), "whole")
    check(lambda each: is_allowed(rules, each, "whole"), lark, plain)
