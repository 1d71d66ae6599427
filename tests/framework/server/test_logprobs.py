"""Log probabilities lose no candidate, and their offsets are places in the text."""

from quire.outputs import Delta, Logprob
from quire.server.logprobs import chat_logprobs, completion_logprobs


def token_of(tokenizer, octets):
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == octets)


def delta_of(*positions):
    rows = [{i: Logprob(number, 1, "") for i, number in row.items()} for row in positions]
    return Delta(index=0, text="", token_ids=[next(iter(row)) for row in rows], logprobs=rows)


def test_parts_of_characters_are_told_apart_by_their_bytes(tokenizer):
    first, second, third = (token_of(tokenizer, octet) for octet in (b"\xf0", b"\xe2", b"\x9f"))
    shown, _ = completion_logprobs(
        delta_of({first: -0.5, second: -1.0, third: -2.0}), 3, 0, tokenizer
    )
    assert shown.tokens == [r"bytes:\xf0"]
    assert shown.top_logprobs == [{r"bytes:\xf0": -0.5, r"bytes:\xe2": -1.0, r"bytes:\x9f": -2.0}]


def test_offsets_count_the_characters_of_the_text(tokenizer):
    text = "a\U0001f327b"
    ids = [token_of(tokenizer, bytes([octet])) for octet in text.encode()]
    shown, end = completion_logprobs(delta_of(*({i: -1.0} for i in ids)), 0, 5, tokenizer)
    assert shown.tokens[0] == "a"
    assert shown.text_offset == [5, 6, 7, 7, 7, 7]  # a character is where its first byte is
    assert end == 5 + len(text)
    silent = Delta(index=0, text="x", token_ids=[1])
    assert completion_logprobs(silent, 0, 5, tokenizer) == (None, 5)


def test_chats_have_the_bytes_beside_the_text(tokenizer):
    part = token_of(tokenizer, b"\xf0")
    (position,) = chat_logprobs(delta_of({part: -0.5}), 1, tokenizer).content
    assert (position.token, position.bytes) == ("\ufffd", [0xF0])
