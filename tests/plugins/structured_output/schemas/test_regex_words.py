"""Words of regexes that have few."""

import pytest

from quire_structured_output.schemas.ecma_regex import anchored_match
from quire_structured_output.schemas.regex_words import MAX_PAIRS, PAIRS_CHARGED, listed_words

NAMES = ["b", "a", "ab", "-", "abab", ""]


def words_of(regex, names=NAMES, charge=lambda work: None):
    return listed_words(anchored_match(regex, "a name"), names, charge)


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("^[ab]$", ["b", "a"]),
        ("^a$|^ab$", ["a", "ab"]),
        ("^(?:a|b?)$", ["b", "a", ""]),
        ("^(ab){1,2}$", ["ab", "abab"]),
        ("^(|a|b|ab){1}$", ["b", "a", "ab", ""]),
        ("^(){0,1000}a{0,0}$", [""]),
        ("^(){3,}b(a{3}){0}$", ["b"]),
        ("^\\x2d$", ["-"]),
        ("^[aa-b]$", ["b", "a"]),
    ],
)
def test_the_words_of_a_regex_are_in_the_order_of_the_names(regex, words):
    assert words_of(regex) == words


@pytest.mark.parametrize(
    "regex",
    [
        "a", "^a", "^a*$", "^a+b$", "^[abc]$", "^[^a]$", "^\\p{Lu}$", "^[ab]{2}$", "^(ab){3}$",
        "^a{0,100000}$", "^(a{100000}){100000}$", "^.$",
    ],
)  # fmt: skip
def test_a_regex_that_matches_other_texts_has_no_list_of_words(regex):
    assert words_of(regex) is None


def test_without_names_no_regex_is_listed():
    assert words_of("^$", []) is None


def test_the_work_for_one_regex_has_a_limit():
    names = [f"{number:03}" for number in range(1000)]
    charged = []
    assert words_of("^[0-9]{3}$", names, charged.append) == names
    assert charged == [1 + (10 + 100 + 1000 + 1000) // PAIRS_CHARGED]
    assert words_of(f"^(?:{'|'.join(['[0-9]{3}'] * 40)})$", names, charged.append) is None
    assert MAX_PAIRS // PAIRS_CHARGED <= charged[1] <= MAX_PAIRS // PAIRS_CHARGED + 100


def test_names_in_other_scripts_and_signs_are_words():
    names = ["é", 'q"', "😀", "\\"]
    assert words_of('^(?:\\u{e9}|q"|\\u{1f600}|\\\\)$', names) == names
