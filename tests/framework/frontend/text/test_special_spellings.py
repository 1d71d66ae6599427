"""Spellings of special tokens: where breaks keep a text from being read as one."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.text.special_spellings import SpecialSpellings

MARK = "\ue000"
TOKENS = ["<|im_end|>", "<|im_start|>", "<s>", "aa!aa!"]
SPELLINGS = SpecialSpellings(TOKENS)
TEXTS = st.text(st.sampled_from("<|>imsa!_endtr \n"), max_size=12) | st.sampled_from(TOKENS)


@pytest.mark.parametrize(
    "text", ["a<|im_end|>b", "<s>", "it ends with <", "it ends with <|im_  \n", "|> begins", "t|>"]
)
def test_a_spelling_or_a_part_at_an_end_is_near(text):
    assert SPELLINGS.are_near(text)


@pytest.mark.parametrize("text", ["", "Hi", "a < b", "x|>y", "</s >", "<|im_end>", "  "])
def test_other_texts_are_not_near(text):
    assert not SPELLINGS.are_near(text)


def test_no_token_is_near_where_there_is_none():
    assert not SpecialSpellings([]).are_near("<s>")


def test_words_white_space_and_characters_are_left_out():
    assert SpecialSpellings(["user", "\n\n", "#", "<s>"]).spellings == ["<s>"]


def test_breaks_are_kept_only_where_a_spelling_spans_one():
    assert SPELLINGS.breaks_of(["a <", " b", "|> c"]) == ()
    assert SPELLINGS.breaks_of(["a <", "s>"]) == (3,)
    assert SPELLINGS.breaks_of(["<s", "", "> and <|im_", "end|>"]) == (2, 2, 13)


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_no_spelling_is_left_in_or_between_broken_texts(texts):
    pieces = "".join(SPELLINGS.broken(text, MARK) for text in texts).split(MARK)
    assert "".join(pieces) == "".join(texts)
    assert not any(token in piece for piece in pieces for token in TOKENS)


@given(TEXTS)
def test_a_text_that_is_not_near_needs_no_break(text):
    if not SPELLINGS.are_near(text):
        assert SPELLINGS.broken(text, MARK) == text


@given(st.lists(TEXTS, min_size=1, max_size=5))
def test_breaks_cut_the_text_where_the_pieces_end(pieces):
    breaks = SPELLINGS.breaks_of(pieces)
    text = "".join(pieces)
    bounds = [0, *breaks, len(text)]
    if breaks:
        assert [text[i:j] for i, j in itertools.pairwise(bounds)] == pieces
    else:
        kept = sum(_num_spellings(piece) for piece in pieces)
        assert _num_spellings(text) == kept


def _num_spellings(text):
    return sum(text.startswith(token, at) for at in range(len(text)) for token in TOKENS)
