"""Offsets of an echoed prompt follow the text that is shown, whatever its tokens decode to."""

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models

from quire.frontend.intake.prompt import EncodedPrompt
from quire.frontend.text.tokenizer import FastBackend, Tokenizer
from quire.outputs import Logprob
from quire.server.routes.openai.echo import Echo
from quire.server.wire.openai_logprobs import TokenSpelling

NAMES = ("<s>", "▁one", "▁two", "▁three", "é", *(f"<0x{byte:02X}>" for byte in range(256)))
IDS = {name: token_id for token_id, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def pieces():
    """A SentencePiece tokenizer: a text loses the blank that its first token has."""
    fast = Fast(models.BPE(vocab=IDS, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    fast.add_special_tokens(["<s>"])
    return Tokenizer(FastBackend(fast))


def ids_of(*names):
    return [IDS[name] for name in names]


def shown(tokenizer, text, ids, num_top=0, cut=None):
    echo = Echo(EncodedPrompt(text, ids), TokenSpelling(tokenizer), num_top)
    rows = [None, *({i: Logprob(-1.0, 1), 260: Logprob(-0.5, 1)} for i in ids[1:])]
    parts = [rows] if cut is None else [rows[:cut], rows[cut:]]
    return echo, [echo.logprobs(part) for part in parts]


def offsets(tokenizer, text, *names):
    _, (found,) = shown(tokenizer, text, ids_of(*names))
    return found.text_offset


def test_the_first_blank_that_a_text_does_not_have_takes_no_room(pieces):
    assert offsets(pieces, "one two three", "▁one", "▁two", "▁three") == [0, 3, 7]
    assert offsets(pieces, " one two", "▁one", "▁two") == [0, 4]


def test_a_token_that_was_rewritten_takes_the_room_of_its_own_text(pieces):
    assert offsets(pieces, "One Two Three", "▁one", "▁two", "▁three") == [0, 3, 7]
    assert offsets(pieces, "One TWO three", "▁one", "▁two", "▁three") == [0, 3, 7]


def test_special_tokens_take_room_only_where_the_text_has_them(pieces):
    assert offsets(pieces, "one", "<s>", "▁one", "<s>") == [0, 0, 3]
    assert offsets(pieces, "<s>one", "<s>", "▁one") == [0, 3]


def test_offsets_count_characters_and_not_bytes(pieces):
    assert offsets(pieces, "ééone", "é", "<0xC3>", "<0xA9>", "▁one") == [0, 1, 2, 2]


def test_more_tokens_than_text_end_with_it(pieces):
    assert offsets(pieces, "one", "▁one", "▁two", "▁three") == [0, 3, 3]


def test_the_text_that_was_sent_is_shown_and_ids_are_decoded(pieces):
    ids = ids_of("<s>", "▁one", "▁two")
    assert Echo(EncodedPrompt("One  two", ids), TokenSpelling(pieces), 0).text == "One  two"
    assert Echo(EncodedPrompt(None, ids), TokenSpelling(pieces), 0).text == "one two"


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_chunks_of_a_prompt_go_on_where_the_last_one_ended(pieces, cut):
    ids = ids_of("▁one", "é", "▁two", "▁three")
    _, (whole,) = shown(pieces, "oneé two three", ids)
    _, parts = shown(pieces, "oneé two three", ids, cut=cut)
    assert [o for part in parts for o in part.text_offset] == whole.text_offset == [0, 3, 4, 8]
    assert [t for part in parts for t in part.tokens] == whole.tokens


@pytest.mark.parametrize(("num_top", "num_shown"), [(0, 1), (1, 2), (2, 2)])
def test_nothing_predicts_the_first_token_and_the_others_have_candidates(
    pieces, num_top, num_shown
):
    _, (found,) = shown(pieces, "one two", ids_of("▁one", "▁two"), num_top)
    assert found.tokens == [" one", " two"]
    assert found.token_logprobs == [None, -1.0]
    assert found.top_logprobs[0] is None
    assert len(found.top_logprobs[1]) == num_shown
