"""A text never has fewer tokens than was said before it was tokenized."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from quire.frontend.text.token_lengths import TokenLengths

ALPHABET = pre_tokenizers.ByteLevel.alphabet()
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
COMPOSED = "\u1fa7"  # of four characters: omega, two marks and the subscript
SPELT_OUT = "\u03c9\u0314\u0342\u0345"


def byte_level(normalizer=None, pre_tokenizer=BYTE_LEVEL, more=(), alphabet=ALPHABET):
    tokens = dict.fromkeys([*alphabet, "aa", "aaaa", "ab"])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [("a", "a"), ("aa", "aa"), ("a", "b")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(list(more))
    return tokenizer


def byte_fallback(has_bytes=True, falls_back=True):
    tokens = [f"<0x{byte:02X}>" for byte in range(256 if has_bytes else 255)]
    vocabulary = {
        token: index for index, token in enumerate([*tokens, "<unk>", "a", "aa", "\u2581"])
    }
    model = models.BPE(
        vocabulary, [("a", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=falls_back
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    return tokenizer


STRIPPING = tokenizers.AddedToken("<|end|>", rstrip=True, special=True)
KNOWN = {
    "byte level": byte_level(),
    "nfc": byte_level(normalizers.NFC()),
    "nfkc": byte_level(normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])),
    "normalized bytes": byte_level(normalizers.ByteLevel(), None),
    "split": byte_level(
        None,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "isolated"), BYTE_LEVEL]
        ),
    ),
    "stripping": byte_level(more=[STRIPPING]),
    "byte fallback": byte_fallback(),
}
UNKNOWN = {
    "dropped": byte_level(
        None,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "removed"), BYTE_LEVEL]
        ),
    ),
    "by words": byte_level(
        None, pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), BYTE_LEVEL])
    ),
    "shortened": byte_level(normalizers.Replace("aa", "b")),
    "by a regex": byte_level(normalizers.Replace(tokenizers.Regex("a+"), "a")),
    "stripped": byte_level(normalizers.Strip()),
    "no byte": byte_level(alphabet=ALPHABET[1:]),
    "no fallback": byte_fallback(falls_back=False),
    "a byte is missing": byte_fallback(has_bytes=False),
    "whole words": tokenizers.Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")),
}
TEXTS = st.lists(
    st.sampled_from(["a", "b", " ", "\n", "\u00e9", "\U0001f600", COMPOSED, SPELT_OUT, "<|end|>"])
    | st.characters(codec="utf-8"),
    max_size=40,
).map("".join)


@pytest.mark.parametrize("name", KNOWN)
@given(text=TEXTS, times=st.integers(1, 8))
def test_a_text_has_as_many_tokens_as_said_or_more(name, text, times):
    tokenizer = KNOWN[name]
    token_ids = tokenizer.encode(text * times, add_special_tokens=False).ids
    assert TokenLengths.of(tokenizer).least_tokens(text * times) <= len(token_ids)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("byte level", "a" * 4000, 1000),
        ("nfc", SPELT_OUT * 1000, 250),
        ("byte fallback", "a" * 600, 100),  # <0x00> is the longest token
        ("stripping", "<|end|>" + " " * 5000, 1),
        ("stripping", "a" * 700, 100),
        ("byte level", " " * 400, 100),
        ("byte level", "", 0),
    ],
)
def test_what_is_said_is_of_use(name, text, expected):
    assert TokenLengths.of(KNOWN[name]).least_tokens(text) == expected


@pytest.mark.parametrize("name", UNKNOWN)
def test_of_a_tokenizer_that_may_drop_or_join_text_nothing_is_said(name):
    assert TokenLengths.of(UNKNOWN[name]) == TokenLengths(None)
    assert TokenLengths.of(UNKNOWN[name]).least_tokens("a" * 1000) == 0
