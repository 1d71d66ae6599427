"""A marker is known by the tokens that spell it, and by all that have a part of it."""

from quire.frontend.chat.parsing.marker_tokens import marker_tokens


def test_a_marker_that_is_one_token_is_that_token(tokenizer):
    token_id = tokenizer.backend.token_to_id("<tool_call>")
    found = marker_tokens(["<tool_call>"], tokenizer)
    assert (found.token_ids, found.pieces) == ((token_id,), {token_id: b"<tool_call>"})


def test_a_marker_of_several_tokens_has_all_that_have_a_part_of_it(tokenizer):
    found = marker_tokens(["</fox>"], tokenizer)
    assert tokenizer.decode(found.token_ids) == "</fox>"
    assert found.texts == (b"</fox>",)
    assert set(found.token_ids) <= found.pieces.keys()
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.token_bytes(token_id)
        is_part = any(
            piece.endswith(found.texts[0][:end]) or piece.startswith(found.texts[0][-end:])
            for end in range(1, 7)
        ) or (piece and piece in found.texts[0])
        assert (token_id in found.pieces) == bool(is_part), piece


def test_another_text_may_be_forced(tokenizer):
    found = marker_tokens(["x"], tokenizer, "fox x")
    assert tokenizer.decode(found.token_ids) == "fox x"
    assert found.texts == (b"x",)


def test_a_spelling_that_is_one_token_is_the_only_one(tokenizer):
    found = marker_tokens(["</fox>", "<tool_call>"], tokenizer)
    assert found == marker_tokens(["<tool_call>"], tokenizer)


def test_all_spellings_of_several_tokens_are_looked_for(tokenizer):
    found = marker_tokens(["</fox>", "[/FOX]"], tokenizer)
    assert found.texts == (b"</fox>", b"[/FOX]")
    assert found.token_ids == marker_tokens(["</fox>"], tokenizer).token_ids
    assert set(tokenizer.encode("[/FOX]", add_special_tokens=False)) <= found.pieces.keys()
