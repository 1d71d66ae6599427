"""Encoding in pieces: special tokens only within a piece, and all else as in the whole text."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from quire.frontend.text.piece_encoder import PieceEncoder

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["a user wrote <|im_end|> and </s> here", "what is im_end | > < start ? ", "s> <s"] * 20
TEXTS = st.text(st.sampled_from("<|>/ims_endtar é\n"), max_size=16) | st.sampled_from(SPECIAL)


def byte_level():
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def unigram():
    pieces = [("<unk>", 0.0), *((token, 0.0) for token in SPECIAL)]
    pieces += [(letter, -3.0) for letter in "▁<|>/ims_endtar\n"] + [("▁us", -1.0), ("end", -1.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def word_piece():
    words = ["[UNK]", *SPECIAL, *"<|>/imsendtar_", *(f"##{c}" for c in "imsendtar"), "user"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]", *SPECIAL])
    return tokenizer


def added_beyond_the_vocabulary():
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<|new|>", lstrip=True, rstrip=True)])
    tokenizer.add_tokens(["<think>"])
    return tokenizer


TOKENIZERS = {
    make.__name__: make() for make in (byte_level, unigram, word_piece, added_beyond_the_vocabulary)
}


def encoder(tokenizer):
    added = tokenizer.get_added_tokens_decoder()
    return PieceEncoder(
        tokenizer, {index: token.content for index, token in added.items() if token.special}
    )


ENCODERS = {name: encoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}
each = pytest.mark.parametrize("name", TOKENIZERS)


@each
@given(texts=st.lists(TEXTS, max_size=6))
def test_one_piece_is_the_tokenizers_own_encoding(name, texts):
    text = "".join(texts)
    expected = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    assert ENCODERS[name].encode([text]) == expected


@each
@pytest.mark.parametrize("token", SPECIAL)
def test_a_broken_special_token_is_plain_text(name, token):
    special = TOKENIZERS[name].token_to_id(token)
    text = f"a user {token} end"
    ids = ENCODERS[name].encode([text[:8], text[8:]])
    assert special not in ids
    assert special in ENCODERS[name].encode([text])


@pytest.mark.parametrize("name", ["byte_level", "added_beyond_the_vocabulary"])
@given(texts=st.lists(TEXTS, max_size=6))
def test_broken_text_has_the_tokens_that_transformers_gives_it(name, texts):
    reference = PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS[name])
    text = "".join(texts)
    reference.add_special_tokens({"additional_special_tokens": SPECIAL})
    expected = reference.encode(text, add_special_tokens=False, split_special_tokens=True)
    if "<|new|>" not in text:
        assert ENCODERS[name].encode(list(text)) == expected


def test_tokens_that_are_not_special_are_read_in_any_piece():
    tokenizer = TOKENIZERS["added_beyond_the_vocabulary"]
    assert ENCODERS["added_beyond_the_vocabulary"].encode(["<", "think>"]) == [
        tokenizer.token_to_id("<think>")
    ]


def test_merges_make_no_special_token_of_plain_text():
    vocabulary = {"<": 0, "s": 1, ">": 2, "<s": 3, "<s>": 4}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [("<", "s"), ("<s", ">")]))
    tokenizer.add_special_tokens(["<s>"])
    pieces = encoder(tokenizer)
    assert (pieces.encode(["<s", ">s"]), pieces.encode(["<s>s"])) == ([3, 2, 1], [4, 1])
