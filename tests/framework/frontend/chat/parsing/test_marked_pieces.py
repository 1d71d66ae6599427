"""A piece ends behind each marker, wherever a stream cuts it."""

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.frontend.chat.parsing.marked_pieces import MarkedPieces
from quire.interfaces.markers import Markers

MARKERS = Markers(("<a>", "<bb>", "|"))


def test_a_delta_is_cut_behind_each_marker():
    assert [*MarkedPieces(MARKERS).of("x<a>y<bb>|z")] == ["x<a>", "y<bb>", "|", "z"]
    assert [*MarkedPieces(MARKERS).of("")] == []


def test_a_marker_in_two_deltas_is_seen():
    pieces = MarkedPieces(MARKERS)
    assert [[*pieces.of(delta)] for delta in ("x<b", "b>y", "<a", ">")] == [
        ["x<b"], ["b>", "y"], ["<a"], [">"],
    ]  # fmt: skip


@given(st.text("<ab>|", max_size=30), st.data())
@settings(deadline=None)
def test_every_split_is_cut_there(text, data):
    def ends(deltas):
        pieces = MarkedPieces(MARKERS)
        return [*accumulate(len(piece) for delta in deltas for piece in pieces.of(delta))]

    deltas, rest = [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        deltas.append(rest[:size])
        rest = rest[size:]
    cuts = {0, *accumulate(map(len, deltas)), len(text)}
    marked = {end for end in range(len(text) + 1) if text[:end].endswith(("<a>", "<bb>", "|"))}
    assert {0, *ends(deltas)} == cuts | marked
