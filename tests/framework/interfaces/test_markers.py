"""Markers are found wherever a text is cut."""

from hypothesis import given
from hypothesis import strategies as st

from quire.interfaces.markers import Markers

MARKERS = Markers(("<a>", "<a>b", "<ab", "aa"))


def test_the_first_marker_is_found_and_of_two_the_longer_one():
    assert MARKERS.find("x<a>by", is_last=False) == (1, "<a>b")
    assert MARKERS.find("x<a>y<a>", is_last=False) == (1, "<a>")
    assert MARKERS.find("x<a>y<a>", 2, is_last=True) == (5, "<a>")
    assert MARKERS.find("xyz", is_last=True) is None


def test_a_marker_that_may_become_a_longer_one_waits_for_what_follows():
    assert MARKERS.find("x<a>", is_last=False) is None
    assert MARKERS.find("x<a>", is_last=True) == (1, "<a>")


def test_a_text_may_begin_a_marker_and_is_none_yet():
    assert [MARKERS.may_begin(text) for text in ("<", "<a", "<a>", "<a>b", "x", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert MARKERS.at_start("<abc") == "<ab"
    assert MARKERS.at_start("x<ab") is None


def test_no_markers_are_never_found():
    none = Markers(())
    assert none.find("text", is_last=True) is None
    assert (none.at_start("text"), none.num_certain("text")) == (None, 4)


def test_a_marker_within_one_that_may_come_waits():
    nested = Markers(("abc", "b"))
    assert nested.find("ab", is_last=False) is None
    assert nested.find("abc", is_last=False) == (0, "abc")
    assert nested.find("abd", is_last=False) == nested.find("ab", is_last=True) == (1, "b")


@given(st.text("<a>bx", max_size=12), st.text("<a>bx", max_size=12))
def test_what_is_found_is_found_whatever_follows(text, more):
    for markers in (MARKERS, Markers(("ab<a", "b", "b<b"))):
        found = markers.find(text, is_last=False)
        assert found is None or markers.find(text + more, is_last=True) == found


@given(st.text("<a>bx", max_size=12), st.text("<a>bx", max_size=12))
def test_the_certain_part_of_a_text_has_the_same_markers_whatever_follows(text, more):
    if MARKERS.find(text, is_last=False) is not None:
        return
    certain = MARKERS.num_certain(text)
    found = MARKERS.find(text + more, is_last=True)
    assert found is None or found[0] >= certain or found[0] + len(found[1]) > len(text)
