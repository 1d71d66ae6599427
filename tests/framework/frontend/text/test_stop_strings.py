"""A stop string is found wherever the text is split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.text.stop_strings import StopStrings


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
