"""Exact streams are used only for the decoders they reproduce; others decode a window."""

import json

import pytest
import tokenizers
from tokenizers import AddedToken, models

from quire.frontend.text.decoding import decoding_of
from quire.frontend.text.pieces import PieceDecoding
from quire.frontend.text.tokenizer import FastBackend, Tokenizer
from quire.frontend.text.window import WindowDecoding

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
BYTES = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def tokenizer_of(*steps):
    """A small vocabulary behind a decoder of these steps."""
    names = ["<s>", "▁a", "▁▁b", "c▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    fast = tokenizers.Tokenizer(
        models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True)
    )
    fast.add_special_tokens([AddedToken("<s>", special=True)])
    spec = json.loads(fast.to_str())
    spec["decoder"] = {"type": "Sequence", "decoders": list(steps)}
    return Tokenizer(FastBackend(tokenizers.Tokenizer.from_str(json.dumps(spec))))


FOLLOWED = [
    [REPLACE, BYTES, FUSE],
    [REPLACE, BYTES, FUSE, STRIP],
    [REPLACE, BYTES, FUSE, STRIP | {"start": 2}],
    [REPLACE, BYTES, FUSE, STRIP | {"start": 0}],
    [METASPACE],
    [METASPACE | {"prepend_scheme": "never"}],
    [METASPACE | {"prepend_scheme": "first"}],
    [{"type": "Sequence", "decoders": [REPLACE, BYTES]}, {"type": "Sequence", "decoders": [FUSE]}],
]
NOT_FOLLOWED = [
    [REPLACE | {"content": "_"}, BYTES, FUSE],
    [REPLACE | {"pattern": {"Regex": "▁"}}, BYTES, FUSE],
    [REPLACE, BYTES, FUSE, STRIP | {"content": "c"}],
    [REPLACE, BYTES, FUSE, STRIP, STRIP],
    [REPLACE, BYTES, FUSE, REPLACE | {"pattern": {"String": "a"}, "content": "x"}],
    [REPLACE, FUSE, BYTES],
    [REPLACE, BYTES],
    [METASPACE, STRIP],
]


@pytest.mark.parametrize("steps", FOLLOWED)
def test_what_a_stream_follows_is_decoded_by_it(steps):
    tokenizer = tokenizer_of(*steps)
    assert type(decoding_of(tokenizer.backend)) is PieceDecoding
    check(tokenizer)


@pytest.mark.parametrize("steps", NOT_FOLLOWED)
def test_whatever_else_there_is_goes_through_a_window(steps):
    tokenizer = tokenizer_of(*steps)
    assert type(decoding_of(tokenizer.backend)) is WindowDecoding
    check(tokenizer)


def test_a_text_that_loses_its_end_cannot_be_streamed_exactly():
    tokenizer = tokenizer_of(REPLACE, BYTES, FUSE, STRIP | {"stop": 1})
    assert type(decoding_of(tokenizer.backend)) is WindowDecoding


def check(tokenizer):
    """The pieces of a stream are what the tokenizer itself decodes."""
    names = ["▁▁b", "▁a", "c▁", "<s>", "<0xC3>", "<0xA9>", "▁a"]
    ids = [tokenizer.backend.token_to_id(name) for name in names]
    for completion in (ids, ids[1:], ids[3:], ids[:1]):
        for skips in (True, False):
            stream = tokenizer.text_stream([], skips)
            text = "".join([stream.feed(token_id) for token_id in completion] + [stream.close()])
            assert text == tokenizer.decode(completion, skip_special_tokens=skips)


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "metaspace", "word_piece"])
def test_an_id_that_does_not_exist_is_nothing(families, family):
    tokenizer = families[family]
    unknown = tokenizer.vocab_size + 5
    assert tokenizer.token_bytes(unknown) == b""
    assert tokenizer.token_text(unknown) == ""
    stream = tokenizer.text_stream([unknown, 3], False)
    assert stream.feed(unknown) == ""


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "metaspace", "word_piece"])
def test_special_tokens_have_bytes_and_are_shown_on_demand(families, family):
    tokenizer = families[family]
    special = min(tokenizer.special_token_ids)
    name = tokenizer.backend.id_to_token(special)
    assert tokenizer.token_bytes(special) == name.encode()
    for skips, text in ((True, ""), (False, name)):
        stream = tokenizer.text_stream([], skips)
        assert stream.feed(special) + stream.close() == text
