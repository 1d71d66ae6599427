"""Streams of each family, case by case: text returned per token, and text held back."""

import pytest

from quire.frontend.text.byte_level import ByteLevelStream
from quire.frontend.text.pieces import PieceRules, PieceStream
from quire.frontend.text.window import WindowStream

PIECES = {
    1: "▁a",
    2: "b",
    3: "▁▁c",
    4: None,
    5: b"\xf0",
    6: b"\x9f",
    7: b"\x98",
    8: b"\x80",
    9: b"x",
}
EMOJI = [5, 6, 7, 8]


def pieces(rules, prompt, completion):
    stream = PieceStream(PIECES.__getitem__, rules, prompt)
    return [stream.feed(token_id) for token_id in completion] + [stream.close(), stream.close()]


PLAIN = PieceRules("▁", has_byte_tokens=True)
STRIP = PieceRules("▁", has_byte_tokens=True, num_strip=1)
DROPS = PieceRules("▁", drops_first_marks=True)


@pytest.mark.parametrize(
    ("rules", "prompt", "completion", "expected"),
    [
        (PLAIN, [], [1, 2, 3], [" a", "b", "  c", "", ""]),
        (PLAIN, [], [4, 1], ["", " a", "", ""]),
        (STRIP, [], [1, 1], ["a", " a", "", ""]),
        (STRIP, [], [3, 3], [" c", "  c", "", ""]),
        (STRIP, [1], [1], [" a", "", ""]),
        (STRIP, [4], [1], ["a", "", ""]),
        (PieceRules("▁", num_strip=2), [], [1, 1], ["a", " a", "", ""]),
        (PieceRules("▁", num_strip=2), [], [2, 3], ["b", "  c", "", ""]),
        (DROPS, [], [3, 1], ["c", " a", "", ""]),
        (DROPS, [4], [1, 1], ["a", " a", "", ""]),
        (DROPS, [2], [1], [" a", "", ""]),
        # A run of bytes comes when it ends: as text, or as one mark a byte.
        (PLAIN, [], [*EMOJI, 2], ["", "", "", "", "😀b", "", ""]),
        (PLAIN, [], [*EMOJI, *EMOJI], [*[""] * 8, "😀😀", ""]),
        (PLAIN, [], [5, 6, 2, 9], ["", "", "\ufffd\ufffdb", "", "x", ""]),
        (PLAIN, [], [5, 4, 6, 2], ["", "", "", "\ufffd\ufffdb", "", ""]),
        # A character that the prompt began belongs to the completion; one that it ended does not.
        (PLAIN, [2, 5, 6], [7, 8, 2], ["", "", "😀b", "", ""]),
        (PLAIN, [9, 5, 6], [7, 8], ["", "", "😀", ""]),
        (PLAIN, [*EMOJI], [2], ["b", "", ""]),
        (PLAIN, [5], [2], ["b", "", ""]),
        (PLAIN, [5], [6, 2], ["", "\ufffdb", "", ""]),
        (PLAIN, [5, 6], [7, 8, 2, *EMOJI, 2], ["", "", "😀b", "", "", "", "", "😀b", "", ""]),
    ],
)
def test_pieces_become_text_as_their_rules_say(rules, prompt, completion, expected):
    assert pieces(rules, prompt, completion) == expected


@pytest.mark.parametrize(("rules", "num_read"), [(PLAIN, 1), (STRIP, 3), (DROPS, 3)])
def test_no_more_of_a_prompt_is_read_than_its_rules_need(rules, num_read):
    read = []

    def piece_of(token_id):
        read.append(token_id)
        return "a"

    PieceStream(piece_of, rules, [0] * 1000)
    assert len(read) <= num_read


def byte_level(prompt, completion):
    octets = [bytes([octet]) for octet in range(256)]
    stream = ByteLevelStream(octets.__getitem__, prompt)
    return [stream.feed(token_id) for token_id in completion] + [stream.close(), stream.close()]


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("before", ["", "a", "é", "😀😀"])
def test_bytes_become_whole_characters_behind_any_prompt(before, cut):
    octets = "😀".encode()
    expected = byte_level([*before.encode(), *octets[:cut]], octets[cut:])
    whole = "😀" if cut < 4 else ""
    assert "".join(expected) == whole
    assert expected.count("") == len(expected) - bool(whole)


def test_an_incomplete_character_is_one_replacement_mark_at_the_end():
    assert byte_level([], "😀".encode()[:3]) == ["", "", "", "\ufffd", ""]
    assert byte_level([], b"\xf0a") == ["", "\ufffda", "", ""]


def test_only_the_end_of_a_prompt_is_read():
    read = []

    def bytes_of(token_id):
        read.append(token_id)
        return b"ab"

    ByteLevelStream(bytes_of, range(1000))
    assert read == [999, 998]


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
