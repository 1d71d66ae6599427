"""Patterns find what Python's `re` finds, in pieces as well, in time that is bounded."""

import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_tool_parsers.response_template.pattern import MAX_MATCH, Pattern

PATTERNS = (
    r"<\|call>call:(?P<name>\w+)",
    r"<call>\s*<f=(?P<name>\w+)>",
    r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>",
    r"a|ab",
    r"(?:ab)+c?",
    r"(?P<a>x*?)(?P<b>x+)y",
    r"[^<>]{2,4}>",
    r"(?=<x>)|z",
    r"<e>|\Z",
    r"(?:<a>)?b(?P<name>[a-z_]+)?<",
    r"(?:a|b)*?c",
    r"(a*)*b",
    r"[\][x-z]+",
    r"[\[e]\]",
    r"x{2}|y{1,}",
    r"\x61\|\u007c\n?",
    r"\s*</p>\s*a",
    r"\s+<(?P<name>[a-z]*)>",
    r" *?(?=<x>)",
    r"\s*[ <]b",
    r"[ab]+c",
    r"a*[ab]c?",
    r"x{,2}y",
    r"<.*?>",
    r"<[a-z]*>",
)
TEXTS = st.lists(st.sampled_from([*"<>abcxyz/=p|_ \n]e", "<p=k>", "</p>", "<call>"])).map("".join)
compiled = cache(Pattern)  # the first search of some takes a while
each_pattern = pytest.mark.parametrize("source", PATTERNS)


def seen(found):
    return found and (found.start, found.end, found.captures)


def expected(found):
    captures = found and {
        name: text for name, text in found.groupdict().items() if text is not None
    }
    return found and (found.start(), found.end(), captures)


@each_pattern
@given(text=TEXTS)
def test_the_first_match_is_that_of_re(source, text):
    found, _ = compiled(source).find(text, 0, is_last=True, may_be_empty=True)
    assert seen(found) == expected(re.compile(source, re.DOTALL).search(text))


@each_pattern
@given(text=TEXTS)
def test_all_matches_are_those_of_re(source, text):
    found = [seen(each) for each in compiled(source).find_all(text)]
    if r"\Z" not in source and "(?=" not in source:
        matches = re.compile(source, re.DOTALL).finditer(text)
        assert found == [expected(each) for each in matches if each.group()]


@each_pattern
@given(text=TEXTS, rest=TEXTS)
def test_a_match_that_is_certain_stays_whatever_follows(source, text, rest):
    pattern = compiled(source)
    found, certain = pattern.find(text, 0, is_last=False)
    later, _ = pattern.find(text + rest, 0, is_last=True)
    if found is not None:
        assert seen(later) == seen(found)
    elif later is not None:
        assert later.start >= certain


@each_pattern
@given(text=TEXTS)
def test_a_match_of_a_whole_text_is_that_of_re(source, text):
    if "(?=" not in source:
        found = compiled(source).full_match(text)
        assert seen(found) == expected(re.compile(source, re.DOTALL).fullmatch(text))


def test_a_bracket_in_a_class_is_no_backslash():
    assert Pattern(r"[\[]").full_match("[") is not None
    assert Pattern(r"[\[]").full_match("\\") is None


def test_a_match_in_a_stream_has_a_limit():
    pattern = Pattern("<.*?>")
    text = "<" + "a" * MAX_MATCH
    assert pattern.find(text[:MAX_MATCH], 0, is_last=False) == (None, 0)
    assert pattern.find(text, 0, is_last=False) == (None, len(text))


def test_a_search_that_takes_too_long_is_given_up():
    with pytest.raises(ValueError, match="takes too long"):
        list(Pattern("(?:a+)+b|a").find_all("a" * 5000))
    assert len(list(Pattern("(a|aa)+b").find_all("a" * 200 + "b"))) == 1
