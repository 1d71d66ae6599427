"""A stop string is found wherever the text is split, and tokens become text up to it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.frontend.text.stop_strings import StoppedStream, StopStrings
from quire.sampling_params import SamplingParams


def run(stops, pieces, include=False):
    search = StopStrings(stops, include)
    text = "".join([search.feed(piece) for piece in pieces] + [search.close()])
    return text, search.found


def test_a_stop_string_over_three_pieces_ends_the_text():
    assert run(["STOP"], ["go S", "T", "OP on"]) == ("go ", "STOP")


def test_the_stop_string_can_be_kept():
    assert run(["STOP"], ["go S", "TOP on"], include=True) == ("go STOP", "STOP")


def test_an_incomplete_stop_string_is_text_in_the_end():
    assert run(["STOP"], ["go STO"]) == ("go STO", None)


def test_what_may_begin_a_stop_string_is_held_back():
    search = StopStrings(["STOP"])
    assert search.feed("a ST") == "a "
    assert search.feed("EP") == "STEP"


def test_the_one_that_is_complete_first_counts():
    assert run(["abcd", "bc"], ["xabcd"]) == ("xa", "bc")


def test_of_two_that_end_together_the_longer_counts():
    assert run(["b", "ab"], ["xab"]) == ("x", "ab")


@pytest.mark.parametrize("text", ["aab", "aaab", "ababab"])
def test_a_beginning_inside_a_beginning_is_found(text):
    stop = "aab" if "aab" in text else "abab"
    assert run([stop], list(text))[1] == stop


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.booleans(),
    st.data(),
)
def test_the_cut_changes_nothing(text, stops, include, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    shown, found = run(stops, pieces, include)
    if not ends:
        assert (shown, found) == (text, None)
        return
    longest = max((s for s in stops if text[: ends[0]].endswith(s)), key=len)
    assert found == longest
    assert shown == (text[: ends[0]] if include else text[: ends[0] - len(longest)])


def test_nothing_is_returned_after_a_stop_string():
    search = StopStrings(["b", "ccc"])
    assert search.feed("xc") == "x"
    assert search.feed("ab") == "ca"
    assert (search.found, search.feed("more"), search.close()) == ("b", "", "")


def test_text_held_back_is_returned_once():
    search = StopStrings(["ccc"])
    assert search.feed("acc") == "a"
    assert (search.close(), search.close(), search.feed("c")) == ("cc", "", "")


@pytest.mark.parametrize(("stops", "held"), [(["ab"], 1), (["abc"], 2), (["x", "abcd"], 3)])
def test_all_but_the_last_character_of_the_longest_is_held_back(stops, held):
    search = StopStrings(stops)
    assert search.feed("zabc"[: 1 + held]) == "z"


def test_of_several_the_one_that_ends_first_counts_and_of_two_the_longer():
    assert run(["cd", "ab"], ["xabcd"]) == ("x", "ab")
    assert run(["d", "bcd", "cd"], ["abcd"]) == ("a", "bcd")
    assert run([], ["abc"]) == ("abc", None)


def detokenize(tokenizer, ids, **params):
    wanted = SamplingParams(**params)
    stream = StoppedStream(tokenizer.text_stream([0], wanted.skip_special_tokens), wanted)
    texts = []
    for token_id in ids:
        texts.append(stream.feed(token_id))
        if stream.stop_string is not None:
            break
    else:
        texts.append(stream.close())
    return "".join(texts), stream.stop_string


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
