"""Texts of special tokens are removed, however the text is cut into pieces."""

from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.chat.parsing.marker_remover import MarkerRemover
from quire.interfaces.markers import Markers

MARKERS = Markers(("<a>", "<a>b", "<ab", "aa"))


def test_markers_are_removed():
    remover = MarkerRemover(MARKERS)
    assert remover.feed("x<a>by<") == "xy"
    assert remover.feed("b") == "<b"
    assert remover.feed("<a") == ""
    assert remover.close() == "<a"


def test_what_is_left_of_removed_markers_is_no_new_one():
    assert MarkerRemover(Markers(("<x>",))).feed("<<x>x>") == "<x>"


@given(st.lists(st.text("<a>b", max_size=6), max_size=8))
def test_any_split_gives_the_same(pieces):
    text = "".join(pieces)
    whole, split = MarkerRemover(MARKERS), MarkerRemover(MARKERS)
    expected = whole.feed(text) + whole.close()
    assert "".join(split.feed(piece) for piece in pieces) + split.close() == expected
