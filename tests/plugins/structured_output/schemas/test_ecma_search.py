"""The search of a regex finds what `regress` finds, and its work is bounded."""

import pytest

from quire.errors import GrammarError
from quire.testing.schema_judge import has_match
from quire_structured_output.schemas.ecma_regex import whole_match
from quire_structured_output.schemas.ecma_search import WrittenRegexes, is_found

REGEXES = (
    r"^\d{3}$", r"\w+", "a|^b$", "(^a|b)c", "^(a|b$)", "[^a-z]", "a{2,3}?b", "", "^$", "$", "x*$",
    "(a|^)b", "(?:)", "a||b", "(a?){3}b", "(ab|a)(bc|c)$", "^(a|aa)+$", "(?:a*)*b", r"^\p{L}+$",
    r"\P{L}", "^(?:a|b){2,}$", "a{0}b", "^(?:){5}a$",
)  # fmt: skip
TEXTS = ("", "a", "b", "ab", "bc", "ac", "abc", "aab", "aaab", "123", "1234", "é", "a\nb", "bab")


@pytest.mark.parametrize("regex", REGEXES)
def test_a_search_finds_what_an_engine_for_ecma_262_finds(regex):
    for text in TEXTS:
        assert is_found(regex, text, "a regex", lambda work: None) == has_match(regex, text), text


@pytest.mark.parametrize("regex", ["^(a+)+$", "^(a|a)*$", "(a*)*b", "((a?){50}){50}b"])
def test_nested_quantifiers_do_not_multiply(regex):
    work: list[int] = []
    assert not is_found(regex, "a" * 200 + "c", "a regex", work.append)
    assert sum(work) < 2_000_000


def test_the_work_can_be_limited():
    def charge(work):
        raise GrammarError("too much")

    with pytest.raises(GrammarError, match="too much"):
        is_found("a", "a", "a regex", charge)


@pytest.mark.parametrize("regex", REGEXES)
def test_a_written_expression_is_found_like_the_one_it_was_written_for(regex):
    regexes, written = WrittenRegexes(), f"^(?:{whole_match(regex, 'a regex')})$"
    for text in TEXTS:
        assert regexes.is_found(written, text) == has_match(regex, text), text


def test_a_search_of_too_much_work_has_no_answer():
    regexes = WrittenRegexes(max_total_work=50_000)
    assert regexes.is_found("^(?:((a?){500}){500}b)$", "a" * 900) is None
    assert regexes.is_found("^(?:a+)$", "aaa") is True
    for _ in range(3):
        regexes.is_found("^(?:((a?){500}){500}b)$", "a" * 900)
    assert regexes.is_found("^(?:a+)$", "aaa") is None  # all of them have had their work
