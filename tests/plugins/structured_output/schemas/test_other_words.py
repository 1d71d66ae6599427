"""Regexes for all strings but some words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_structured_output.schemas.other_words import other_words

HEX = re.compile(r"\\x\{([0-9a-f]+)\}")
WORDS = st.lists(st.text("ab.", max_size=6), min_size=1, max_size=5)


def is_other(text, words):
    expression = re.sub(HEX, lambda m: f"\\U{int(m[1], 16):08x}", other_words(words))
    return re.fullmatch(expression, text) is not None


@given(WORDS, st.text("ab.", max_size=8))
def test_all_strings_but_the_words_are_matched(words, text):
    assert is_other(text, words) == (text not in words)
    assert not is_other(words[0], words)


@pytest.mark.parametrize("length", [1, 2, 3, 1_000])
def test_the_regex_of_a_long_word_is_short_and_hardly_nested(length):
    expression = other_words(["a" * length])
    depths = [expression[:i].count("(") - expression[:i].count(")") for i in range(0, 20_000, 97)]
    assert len(expression) < 50 * length + 100
    assert max(depths) < 15
