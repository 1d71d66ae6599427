"""Regexes of ECMA-262: what `regress`, an engine for them, finds is what is matched as a whole."""

import re

import pytest
import regress
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import GrammarError
from quire.testing.schema_judge import has_match
from quire_structured_output.schemas.ecma_regex import whole_match

REGEXES = (
    r"^\d{3}$", r"\w+", r"^\s$", r"^\S$", "a|^b$", "(^a|b)c", "^(a|b$)", "[^a-z]", r"[\w-.]",
    "^.$", r"\u{1F600}", r"^\uD83D\uDE00$", "[^]", "^{[a-z]}$", "a{2,3}?b", "", "^$", "^", "$",
    "(?<n>a)b", r"[\d-x]", r"\cJ", r"^[^\s]+$", "x*$", "(a|^)b", "[a-]", "[-a]", "^(?:a$|b)",
    r"[\b]", r"\0", r"^[\D]$", r"^[^\W]$", r"\/", r"^\x41$", "(?:)", "a||b", r"^[\u2028]$",
)  # fmt: skip
TEXTS = (
    "", "a", "b", "ab", "bc", "ac", "xbx", "abc", "12", "123", "1234", "\u0669", "é", "\ufeff",
    " ", "\n", "a\n", "\u2028", "_", "-", "x", "{a}", "😀", "aab", "aaab", "A1-", "c\nb", "\b",
    "\0", "/", "A", "\x7f", "٣",
)  # fmt: skip
REFUSED = {
    "(?=a)": "a lookahead",
    "a(?!b)": "a lookahead",
    "(?<=a)b": "a lookbehind",
    r"(a)\1": "a backreference",
    r"(?<n>a)\k<n>": "a backreference",
    r"\bword\b": "a word boundary",
    "a^b": "the anchor",
    "(^a)+b": "an anchor",
    "(?i)a": "ECMA-262 does not have",
    r"\Z": "the escape",
    r"\uD800": "code point",
    r"\p{Script=Greek}": r"\\p",
    "a{1,1000000}": "a repetition of more than",
    "(" * 60 + ")" * 60: "nested more than",
    "a" * 40_000: "40000 characters",
}
INVALID = ("(", ")", "[a", "a**", "*", "[b-a]", "a{3,1}", "\\")


def in_python(written):
    """Return a written expression for Python's `re`, which has another notation of code points."""
    return re.compile(re.sub(r"\\x\{([0-9a-f]+)\}", lambda m: rf"\U{m[1]:0>8}", written), re.DOTALL)


@pytest.mark.parametrize("expression", REGEXES)
def test_a_whole_match_is_where_an_engine_of_ecma_262_finds_one(expression):
    compiled = in_python(whole_match(expression, "the regex"))
    for text in TEXTS:
        assert bool(compiled.fullmatch(text)) == has_match(expression, text), repr(text)


PIECES = st.sampled_from(
    [
        *"ab^$|().*+?-]{},",
        "(?:",
        "[ab]",
        "[^a]",
        "{2}",
        r"\d",
        r"\w",
        r"\S",
        r"\n",
        r"\x61",
        r"[\s-z]",
    ]
)


@settings(max_examples=1500, deadline=None)
@given(st.lists(PIECES, max_size=7).map("".join), st.text("ab1 \n-{}],", max_size=5))
def test_random_regexes_are_refused_or_mean_the_same(expression, text):
    try:
        whole = whole_match(expression, "the regex")
    except GrammarError:
        return
    try:
        regress.Regex(expression)
    except regress.RegressError:
        pytest.fail(f"{expression!r} is not valid, and is taken for {whole!r}")
    found = in_python(whole).fullmatch(text)
    assert bool(found) == has_match(expression, text)


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_not_regular_is_refused_by_name(expression):
    with pytest.raises(GrammarError, match=REFUSED[expression]):
        whole_match(expression, "the regex")


@pytest.mark.parametrize("expression", INVALID)
def test_an_invalid_regex_is_refused(expression):
    with pytest.raises(GrammarError, match="not a valid regular expression"):
        whole_match(expression, "the regex")


def test_what_is_not_anchored_may_have_to_be_whole():
    assert whole_match("ab", "the regex", around=()) == "ab"
    assert whole_match("^ab$", "the regex") == "ab"
