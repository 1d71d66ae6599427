"""Streams of bytes: whole characters behind any prompt, and the end of one that is cut."""

import pytest

from quire.frontend.text.byte_level import ByteLevelStream


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
