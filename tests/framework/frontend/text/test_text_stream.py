"""For every decoder: the joined pieces are the whole text, and characters are never split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.frontend.text.byte_level import ByteLevelDecoding
from quire.frontend.text.decoding import decoding_of
from quire.frontend.text.pieces import PieceDecoding
from quire.frontend.text.window import WindowDecoding

EXACT = {
    "byte_level": ByteLevelDecoding,
    "odd_byte_level": ByteLevelDecoding,
    "byte_fallback": PieceDecoding,
    "byte_fallback_no_strip": PieceDecoding,
    "byte_fallback_strip_two": PieceDecoding,
    "metaspace": PieceDecoding,
    "metaspace_first": PieceDecoding,
    "metaspace_never": PieceDecoding,
    "word_piece": WindowDecoding,
    "bare": WindowDecoding,
}
FALLBACK_BYTES = 3  # ids of <0x00> and on, in the tokenizers with byte fallback


def stream_text(tokenizer, prompt, completion, skip=False):
    stream = tokenizer.text_stream(prompt, skip)
    return [stream.feed(token_id) for token_id in completion] + [stream.close()]


@pytest.mark.parametrize("family", EXACT)
def test_the_decoder_is_read_from_the_description(families, family):
    assert type(decoding_of(families[family].backend)) is EXACT[family]


@pytest.mark.parametrize("family", EXACT)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_pieces_joined_are_the_whole(families, family, data, skip):
    tokenizer = families[family]
    ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40)
    completion = data.draw(ids)
    pieces = stream_text(tokenizer, [], completion, skip)
    assert "".join(pieces) == tokenizer.decode(completion, skip_special_tokens=skip)


@pytest.mark.parametrize("family", EXACT)
@given(data=st.data(), skip=st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_completion_continues_the_prompt(families, family, data, skip):
    tokenizer = families[family]
    ids = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20)
    prompt, completion = data.draw(ids), data.draw(ids)
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode(prompt + completion, skip_special_tokens=skip)
    text = "".join(stream_text(tokenizer, prompt, completion, skip))
    is_kept = whole.startswith(before) and not before.endswith("\ufffd")
    # A blank at the front leaves no trace in `before`, and is a U+FFFD once its run is broken.
    is_blank = not before and whole.startswith("\ufffd") and ends_with_byte(family, prompt)
    if is_kept and not is_blank:
        assert before + text == whole
    else:  # the prompt ends inside a character, which belongs to the completion
        assert whole.endswith(text)


def ends_with_byte(family, token_ids):
    """Whether a byte token is among the last ones: special tokens do not end a run."""
    byte_ids = range(FALLBACK_BYTES, FALLBACK_BYTES + 256)
    return family.startswith("byte_fallback") and any(i in byte_ids for i in token_ids)


@pytest.mark.parametrize("prompt", [[0], [ord("a")], [0xC3, 0xA9]])
def test_a_blank_after_a_prompt_of_bytes_is_kept(families, prompt):
    tokenizer = families["byte_fallback"]
    ids = [FALLBACK_BYTES + byte for byte in prompt]
    blank = tokenizer.encode(" ", add_special_tokens=False)[-1:]
    whole = tokenizer.decode(ids + blank, skip_special_tokens=False)
    assert "".join(stream_text(tokenizer, ids, blank)) == whole[len(whole.rstrip(" ")) :]


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "byte_fallback_no_strip"])
@given(text=st.text(st.characters(codec="utf-8"), max_size=20) | st.just("a👩‍👩‍👧é🏳️‍🌈"))
@settings(max_examples=150, deadline=None)
def test_no_delta_holds_a_broken_character(families, family, text):
    tokenizer = families[family]
    if family == "byte_level":
        ids = tokenizer.encode(text, add_special_tokens=False)
    else:
        ids = [FALLBACK_BYTES + byte for byte in text.encode()]
    pieces = stream_text(tokenizer, [], ids)
    whole = tokenizer.decode(ids, skip_special_tokens=False)
    assert "".join(pieces) == whole
    assert sum(piece.count("\ufffd") for piece in pieces) == whole.count("\ufffd")


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_the_prompt_began_belongs_to_the_completion(families, family, cut):
    tokenizer = families[family]
    ids = [tokenizer.backend.token_to_id("a")]
    if family == "byte_level":
        alphabet = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
        ids += [alphabet[bytes([byte])] for byte in "👩".encode()]
    else:
        ids += [FALLBACK_BYTES + byte for byte in "👩".encode()]
    assert "".join(stream_text(tokenizer, ids[: 1 + cut], ids[1 + cut :])) == "👩"


def test_the_prompt_does_not_leak(families):
    tokenizer = families["byte_level"]
    prompt = tokenizer.encode("the quick brown fox 👩")
    assert "".join(stream_text(tokenizer, prompt[:-1], [prompt[-1]])) == "👩"
    assert "".join(stream_text(tokenizer, prompt, [])) == ""


def test_the_blank_before_the_first_word_is_kept(families):
    for family in ("byte_fallback", "metaspace"):
        tokenizer = families[family]
        the, a = tokenizer.backend.token_to_id("▁the"), tokenizer.backend.token_to_id("a")
        assert "".join(stream_text(tokenizer, [the], [the, a])) == " thea"
        assert "".join(stream_text(tokenizer, [], [the, a])) == "thea"


def test_a_run_of_bytes_that_is_no_text_is_one_mark_a_byte(families):
    tokenizer = families["byte_fallback"]
    ids = [FALLBACK_BYTES + byte for byte in b"\xe2\x82\xac\xff"]
    assert stream_text(tokenizer, [], ids) == ["", "", "", "", "\ufffd" * 4]


@pytest.mark.parametrize("family", EXACT)
def test_a_token_costs_the_same_at_any_length(families, family):
    """The work of one token is bounded: no stream looks at more than a few neighbours."""
    tokenizer = families[family]
    counter = CountingBackend(tokenizer.backend)
    stream = decoding_of(counter).stream([1, 2, 1], frozenset())
    for token_id in [1, 2] * 1000:
        stream.feed(token_id)
    assert counter.max_decoded <= 25


class CountingBackend:
    """A tokenizer that notes the longest list that it was asked to decode."""

    def __init__(self, backend):
        self.backend = backend
        self.max_decoded = 0

    def decode(self, token_ids, *, skip_special_tokens):
        self.max_decoded = max(self.max_decoded, len(token_ids))
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id):
        return self.backend.id_to_token(token_id)

    def special_token_ids(self):
        return self.backend.special_token_ids()

    def decoder(self):
        return self.backend.decoder()
