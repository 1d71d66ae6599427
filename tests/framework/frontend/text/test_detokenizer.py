"""Tokens become text up to the first stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.frontend.text.detokenizer import Detokenizer
from quire.sampling_params import SamplingParams


def detokenize(tokenizer, ids, **params):
    detokenizer = Detokenizer(tokenizer, [0], SamplingParams(**params))
    texts = []
    for token_id in ids:
        texts.append(detokenizer.feed(token_id))
        if detokenizer.stop_string is not None:
            break
    else:
        texts.append(detokenizer.close())
    return "".join(texts), detokenizer.stop_string


def test_a_stop_string_may_lie_across_tokens(tokenizer):
    ids = tokenizer.encode("the lazy dog jumps over the fox")
    assert detokenize(tokenizer, ids, stop=["y dog j"]) == ("the laz", "y dog j")


def test_a_character_of_several_tokens_can_be_a_stop_string(tokenizer):
    ids = tokenizer.encode("a 👩‍👩‍👧 b")
    assert detokenize(tokenizer, ids, stop=["\u200d👧"]) == ("a 👩‍👩", "\u200d👧")


def test_special_tokens_are_shown_on_demand(tokenizer):
    ids = [*tokenizer.encode("dog"), tokenizer.eos_token_ids[0]]
    assert detokenize(tokenizer, ids) == ("dog", None)
    assert detokenize(tokenizer, ids, skip_special_tokens=False) == ("dog<|end|>", None)


def test_nothing_stops_before_min_tokens(tokenizer):
    ids = tokenizer.encode("fox fox fox fox")
    width = len(tokenizer.encode("fox"))
    assert detokenize(tokenizer, ids, stop=["fox"])[0] == ""
    text, found = detokenize(tokenizer, ids, stop=["fox"], min_tokens=width + 1)
    assert (text, found) == ("fox ", "fox")


@given(text=st.text(st.sampled_from("abé👩 漢STOP"), max_size=30), stop=st.sampled_from("bé漢"))
@settings(deadline=None)
def test_the_text_ends_where_the_whole_has_the_stop_string(tokenizer, text, stop):
    ids = tokenizer.encode(text)
    shown, found = detokenize(tokenizer, ids, stop=[stop])
    before, mark, _ = text.partition(stop)
    assert shown == before
    assert found == (mark or None)


def letters(tokenizer, text):
    """The ids of a text, one a byte."""
    alphabet = {tokenizer.token_bytes(i): i for i in range(256)} | {
        tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)
    }
    return [alphabet[bytes([octet])] for octet in text.encode()]


@pytest.mark.parametrize(
    ("min_tokens", "text", "found"),
    [(0, "a", "b"), (1, "a", "b"), (2, "a", "b"), (3, "abcd", "b"), (5, "abcd", "b")],
)
def test_a_stop_string_counts_from_the_last_of_min_tokens_on(tokenizer, min_tokens, text, found):
    ids = letters(tokenizer, "abcdb")
    assert detokenize(tokenizer, ids, stop=["b"], min_tokens=min_tokens) == (text, found)


def test_what_is_held_back_comes_at_the_end(tokenizer):
    assert detokenize(tokenizer, letters(tokenizer, "abST"), stop=["STOP"]) == ("abST", None)
    first_byte = letters(tokenizer, "é")[:1]
    assert detokenize(tokenizer, first_byte) == ("\ufffd", None)
    assert detokenize(tokenizer, first_byte, stop=["\ufffd"]) == ("", "\ufffd")
    kept = {"stop": ["cd"], "include_stop_str_in_output": True}
    assert detokenize(tokenizer, letters(tokenizer, "abcde"), **kept) == ("abcd", "cd")
