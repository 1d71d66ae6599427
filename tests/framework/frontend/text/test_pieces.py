"""Streams of pieces, case by case: text returned per token, and bytes held back."""

import pytest

from quire.frontend.text.pieces import PieceRules, PieceStream

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


def test_marks_are_blanks_in_the_bytes_of_a_token(families):
    for family in ("byte_fallback", "metaspace"):
        tokenizer = families[family]
        token_id = tokenizer.backend.token_to_id("▁x▁y")
        assert tokenizer.token_bytes(token_id) == b" x y"
