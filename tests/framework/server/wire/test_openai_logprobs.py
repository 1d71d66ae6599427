"""Log probabilities lose no candidate, and their offsets are positions in the text."""

from quire.outputs import Logprob
from quire.server.wire.openai_logprobs import (
    TokenSpelling,
    chat_logprobs,
    completion_logprobs,
    joined,
    num_characters,
    token_name,
)


def token_of(tokenizer, octets):
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == octets)


def rows_of(*positions):
    return [{i: Logprob(number, 1, "") for i, number in row.items()} for row in positions]


def test_parts_of_characters_are_told_apart_by_their_bytes(tokenizer):
    first, second, third = (token_of(tokenizer, octet) for octet in (b"\xf0", b"\xe2", b"\x9f"))
    shown, _ = completion_logprobs(
        rows_of({first: -0.5, second: -1.0, third: -2.0}), 3, 0, TokenSpelling(tokenizer)
    )
    assert shown.tokens == [r"bytes:\xf0"]
    assert shown.top_logprobs == [{r"bytes:\xf0": -0.5, r"bytes:\xe2": -1.0, r"bytes:\x9f": -2.0}]


def test_offsets_count_the_characters_of_the_text(tokenizer):
    text = "a\U0001f327b"
    ids = [token_of(tokenizer, bytes([octet])) for octet in text.encode()]
    shown, end = completion_logprobs(
        rows_of(*({i: -1.0} for i in ids)), 0, 5, TokenSpelling(tokenizer)
    )
    assert shown.tokens[0] == "a"
    assert shown.text_offset == [5, 6, 7, 7, 7, 7]  # a character is where its first byte is
    assert end == 5 + len(text)


def test_chats_have_the_bytes_beside_the_text(tokenizer):
    part = token_of(tokenizer, b"\xf0")
    (position,) = chat_logprobs(rows_of({part: -0.5}), 1, TokenSpelling(tokenizer)).content
    assert (position.token, position.bytes) == ("\ufffd", [0xF0])


def test_the_chosen_token_is_shown_whether_or_not_it_is_likely(tokenizer):
    a, b, c = (token_of(tokenizer, octet) for octet in (b"a", b"b", b"c"))
    row = {a: -5.0, b: -1.0, c: -2.0}
    for num_top, top in ((0, {}), (1, {"b": -1.0}), (2, {"b": -1.0, "c": -2.0})):
        shown, _ = completion_logprobs(rows_of(row), num_top, 0, TokenSpelling(tokenizer))
        assert (shown.tokens, shown.token_logprobs) == (["a"], [-5.0])
        assert shown.top_logprobs == [top | {"a": -5.0}]
        (position,) = chat_logprobs(rows_of(row), num_top, TokenSpelling(tokenizer)).content
        assert (position.token, position.logprob) == ("a", -5.0)
        assert {found.token: found.logprob for found in position.top_logprobs} == top


def test_of_two_tokens_of_one_text_the_more_likely_is_shown(tokenizer):
    class Same:
        """A tokenizer in which two tokens are the same text."""

        def token_bytes(self, token_id):
            return {1: b"x", 2: b"x", 3: b"y"}[token_id]

    row = {3: -9.0, 1: -1.0, 2: -2.0}
    shown, _ = completion_logprobs(rows_of(row), 3, 0, TokenSpelling(Same()))
    assert shown.top_logprobs == [{"x": -1.0, "y": -9.0}]


def test_characters_are_counted_where_they_begin():
    for text in ("", "abc", "é漢👩"):
        assert num_characters(text.encode()) == len(text)
    assert num_characters(b"\x9f\x98") == 0
    assert [token_name(octets) for octets in (b"a", b"\xe2\x80")] == ["a", r"bytes:\xe2\x80"]


def test_pieces_are_joined_in_their_order(tokenizer):
    a, b = (token_of(tokenizer, octet) for octet in (b"a", b"b"))
    first, offset = completion_logprobs(rows_of({a: -1.0}), 0, 5, TokenSpelling(tokenizer))
    second, _ = completion_logprobs(
        rows_of({b: -2.0}, {a: -3.0}), 0, offset, TokenSpelling(tokenizer)
    )
    whole = joined([first, second])
    assert whole.tokens == ["a", "b", "a"]
    assert whole.token_logprobs == [-1.0, -2.0, -3.0]
    assert whole.top_logprobs == [{"a": -1.0}, {"b": -2.0}, {"a": -3.0}]
    assert whole.text_offset == [5, 6, 7]


def test_completions_list_the_most_likely_first(tokenizer):
    a, b, c, d = (token_of(tokenizer, octet) for octet in (b"a", b"b", b"c", b"d"))
    for row in ({a: -5.0, b: -1.0, c: -2.0, d: -3.0}, {c: -2.0, b: -1.0, d: -3.0, a: -5.0}):
        shown, _ = completion_logprobs(rows_of(row), 4, 0, TokenSpelling(tokenizer))
        assert list(shown.top_logprobs[0].items()) == [
            ("b", -1.0), ("c", -2.0), ("d", -3.0), ("a", -5.0),
        ]  # fmt: skip
    shown, _ = completion_logprobs(
        rows_of({a: -5.0, b: -1.0, c: -2.0}), 1, 0, TokenSpelling(tokenizer)
    )
    assert list(shown.top_logprobs[0]) == ["b", "a"]


def test_tokens_may_be_shown_by_their_ids(tokenizer):
    part, a = token_of(tokenizer, b"\xf0"), token_of(tokenizer, b"a")
    spelling = TokenSpelling(tokenizer, shows_ids=True)
    rows = rows_of({part: -0.5, a: -1.0}, {a: -2.0, part: -1.5})
    shown, end = completion_logprobs(rows, 2, 3, spelling)
    names = [f"token_id:{part}", f"token_id:{a}"]
    assert shown.tokens == names
    assert [list(top) for top in shown.top_logprobs] == [names, names]
    assert (shown.text_offset, end) == ([3, 4], 5)
    first, _ = chat_logprobs(rows, 2, spelling).content
    assert (first.token, first.bytes) == (names[0], [0xF0])
    assert [top.token for top in first.top_logprobs] == names
