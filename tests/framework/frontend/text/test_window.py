"""Streams through a window: no character is broken where it moves, nor lost at the end."""

import pytest

from quire.frontend.text.window import WindowStream


def utf8(ids):
    """Ids are bytes; the decoder writes U+FFFD for what is no text."""
    return bytes(ids).decode("utf-8", "replace")


def window(prompt, completion):
    stream = WindowStream(utf8, prompt)
    return [stream.feed(token_id) for token_id in completion] + [stream.close(), stream.close()]


@pytest.mark.parametrize("num_before", range(20, 30))
def test_a_window_breaks_no_character_wherever_it_moves(num_before):
    text = "a" * num_before + "😀é" * 3 + "b"
    expected = window([], text.encode())
    assert "".join(expected) == text
    assert "\ufffd" not in "".join(expected)
    assert expected[-2:] == ["", ""]


def test_a_window_holds_an_incomplete_character_back_until_the_end():
    assert window([], "😀".encode()[:2]) == ["", "", "\ufffd", ""]
    assert window(b"abc", "é".encode()) == ["", "é", "", ""]
    assert window("é".encode()[:1], [*"é".encode()[1:], 0x41]) == ["é", "A", "", ""]


@pytest.mark.parametrize("num_before", range(20, 30))
def test_an_incomplete_character_is_returned_at_the_end_and_once(num_before):
    expected = window([], b"a" * num_before + "😀".encode()[:2])
    assert "".join(expected) == "a" * num_before + "\ufffd"
    assert expected[-1] == ""
