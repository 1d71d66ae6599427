"""A token's bytes are those that the tokenizer decodes it to."""

import json
import random
import time

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from quire.errors import UnsupportedModelError
from quire.frontend.text.byte_spelling import byte_level_bytes, single_byte
from quire.frontend.text.decoding import decoding_of
from quire.frontend.text.tokenizer import FastBackend
from quire.frontend.text.vocabulary import parse_vocabulary, read_vocabulary

CORPUS = ["Grüße aus 東京, 3.5 € — naïve\n\t{'a': 1}", "the cat and the dog", "ёлка 😀"] * 5


@pytest.fixture(scope="module")
def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    return tokenizer


@pytest.fixture(scope="module")
def sentencepiece():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(spec))


def spelled(vocabulary):
    return {token_id: token for token, ids in vocabulary.tokens.items() for token_id in ids}


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_the_tokens_of_a_text_spell_the_text(kind, request):
    tokenizer = request.getfixturevalue(kind)
    end = tokenizer.token_to_id("<|end|>" if kind == "byte_level" else "</s>")
    tokens = spelled(read_vocabulary(tokenizer, [end], tokenizer.get_vocab_size() + 10))
    for text in [*CORPUS[:3], "neverseen \x07 ÿ ﷽ a  b", ""]:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(tokens[i] for i in ids) == text.encode()


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_grammars_and_detokenizers_read_the_same_bytes(kind, request):
    tokenizer = request.getfixturevalue(kind)
    decoding = decoding_of(FastBackend(tokenizer))
    tokens = spelled(read_vocabulary(tokenizer, [], tokenizer.get_vocab_size()))
    assert len(tokens) > 300
    for token_id, octets in tokens.items():
        assert decoding.token_bytes(token_id) == octets


def test_a_token_outside_the_alphabet_is_its_own_text():
    assert byte_level_bytes("Ġé") == b" \xe9"
    assert byte_level_bytes("é b") == "é b".encode()
    assert single_byte("<0xe9>") == b"\xe9"
    assert [single_byte(token) for token in ("<0xZZ>", "<0x9>", "0x99", "<0x99>>")] == [None] * 4


def test_special_tokens_are_left_out_and_other_added_ones_are_not(byte_level):
    end = byte_level.token_to_id("<|end|>")
    vocabulary = read_vocabulary(byte_level, [end, end], byte_level.get_vocab_size())
    assert vocabulary.eos_token_ids == (end,)
    assert end not in spelled(vocabulary)
    assert vocabulary.tokens[b"<tool_call>"] == [byte_level.token_to_id("<tool_call>")]
    assert len(spelled(vocabulary)) == byte_level.get_vocab_size() - 1


def test_every_byte_has_a_token(byte_level, sentencepiece):
    for tokenizer in (byte_level, sentencepiece):
        vocabulary = read_vocabulary(tokenizer, [], 1000)
        assert all(bytes([byte]) in vocabulary.tokens for byte in range(256))


def test_an_end_that_is_no_special_token_is_left_out_too(byte_level):
    end = byte_level.token_to_id("a")
    assert end not in spelled(read_vocabulary(byte_level, [end], 1000))


def test_ids_beyond_the_logits_are_left_out(byte_level):
    vocabulary = read_vocabulary(byte_level, [0], 300)
    assert max(spelled(vocabulary)) == 299
    assert vocabulary.size == 300


def test_two_tokens_of_the_same_bytes_share_an_entry():
    spec = {
        "model": {"type": "BPE", "vocab": {"<0x61>": 0, "a": 1, "</s>": 2}},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
            ],
        },
        "added_tokens": [{"id": 2, "content": "</s>", "special": True}],
    }
    assert parse_vocabulary(json.dumps(spec), [2], 3).tokens == {b"a": [0, 1]}


def test_a_unigram_model_is_read_in_the_order_of_its_scores():
    spec = {
        "model": {"type": "Unigram", "vocab": [["</s>", 0.0], ["▁a", -1.0], ["b", -2.0]]},
        "decoder": {"type": "Metaspace", "replacement": "▁"},
        "added_tokens": None,
    }
    assert parse_vocabulary(json.dumps(spec), [0], 3).tokens == {b" a": [1], b"b": [2]}


def test_a_tokenizer_that_hides_its_bytes_is_refused():
    tokenizer = Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        read_vocabulary(tokenizer, [2], 3)


def test_150_000_tokens_take_a_moment():
    rng = random.Random(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {"".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(160_000)}
    vocab = {word: i for i, word in enumerate(sorted(words)[:150_000])}
    text = json.dumps({"model": {"type": "BPE", "vocab": vocab}, "decoder": {"type": "ByteLevel"}})
    start = time.process_time()
    vocabulary = parse_vocabulary(text, [], len(vocab))
    assert time.process_time() - start < 3.0  # a quarter of a second is usual
    assert len(spelled(vocabulary)) == len(vocab)


ALPHABETIC = {
    "model": {"type": "BPE", "vocab": {"a": 0, "é": 1, "b": 2, "": 3, "<tool>": 4, "</s>": 5}},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [
        {"id": 1, "content": "é", "special": False},
        {"id": 4, "content": "<tool>", "special": False},
        {"id": 5, "content": "</s>", "special": True},
    ],
}


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        (6, {b"a": [0], "é".encode(): [1], b"b": [2], b"<tool>": [4]}),
        (5, {b"a": [0], "é".encode(): [1], b"b": [2], b"<tool>": [4]}),
        (4, {b"a": [0], "é".encode(): [1], b"b": [2]}),
        (2, {b"a": [0], "é".encode(): [1]}),
        (1, {b"a": [0]}),
    ],
)
def test_only_tokens_with_logits_and_bytes_are_in_a_vocabulary(size, tokens):
    found = parse_vocabulary(json.dumps(ALPHABETIC), [5, 5], size)
    assert (found.tokens, found.eos_token_ids, found.size) == (tokens, (5,), size)


def test_an_added_token_that_ends_a_completion_is_left_out():
    found = parse_vocabulary(json.dumps(ALPHABETIC), [4, 0], 6)
    assert b"<tool>" not in found.tokens
    assert b"a" not in found.tokens
    assert found.eos_token_ids == (4, 0)


def decoder_of(*steps):
    vocab = {"▁a": 0, "<0x41>": 1, "_b": 2}
    decoder = {"type": "Sequence", "decoders": list(steps)}
    return json.dumps({"model": {"type": "BPE", "vocab": vocab}, "decoder": decoder})


def test_byte_tokens_are_bytes_only_where_the_decoder_falls_back_to_them():
    blank = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    other = {"type": "Replace", "pattern": {"String": "_"}, "content": "-"}
    nested = {"type": "Sequence", "decoders": [blank]}
    for steps in ((blank,), (other, blank), (nested,)):
        assert parse_vocabulary(decoder_of(*steps), [], 3).tokens == {
            b" a": [0], b"<0x41>": [1], b"_b": [2],
        }  # fmt: skip
    fallback = {"type": "ByteFallback"}
    assert parse_vocabulary(decoder_of(blank, fallback), [], 3).tokens[b"A"] == [1]
    regex = {"type": "Replace", "pattern": {"Regex": "▁"}, "content": " "}
    for step in (other, regex):
        with pytest.raises(UnsupportedModelError, match="Replace"):
            parse_vocabulary(decoder_of(step), [], 3)


def test_a_byte_level_splitter_says_it_as_well_as_a_decoder():
    spec = {"model": {"vocab": {"Ġ": 0}}, "pre_tokenizer": {"type": "ByteLevel"}, "decoder": None}
    assert parse_vocabulary(json.dumps(spec), [], 1).tokens == {b" ": [0]}


def test_the_alphabet_has_each_byte_once_and_byte_tokens_are_whole():
    alphabet = {byte_level_bytes(chr(code)) for code in range(0x21, 0x144)}
    assert {bytes([octet]) for octet in range(256)} <= alphabet
    assert byte_level_bytes("\u0143") == b"\xad"
    assert byte_level_bytes("\xad") == "\xad".encode()
    assert single_byte("<0x41>") == b"A"
    assert single_byte("<0x41>x") is single_byte("x<0x41>") is None


def test_no_grammar_allows_a_special_token_that_ends_nothing(byte_level):
    special = byte_level.token_to_id("<|end|>")
    assert special not in spelled(read_vocabulary(byte_level, [], 500))
    assert byte_level.token_to_id("<tool_call>") in spelled(read_vocabulary(byte_level, [], 500))
