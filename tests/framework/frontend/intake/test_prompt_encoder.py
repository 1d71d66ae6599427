"""Encoding of prompts: bounded work, and the tokens of the whole text."""

import random
import re

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from quire.errors import PromptTooLongError, RequestError
from quire.frontend.intake.prompt_encoder import CHARACTERS, PART_CHARACTERS, SLACK, PromptEncoder
from quire.frontend.text.tokenizer import FastBackend, Tokenizer

WORDS = ["a", "the", "fox", "jumps,", "over", "1234", "naïve", "  ", "\n", "(x)", "end.", "aaaa"]


def trained(pre_tokenizer, *, prefix=False):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    random.seed(1)
    tokenizer.train_from_iterator(
        [" ".join(random.choices(WORDS, k=60)) for _ in range(40)], trainer
    )
    return Counted(
        FastBackend(tokenizer), special_tokens={"bos_token": "<s>"}, add_bos_token=prefix
    )


class Counted(Tokenizer):
    """Notes how many characters it is given."""

    num_characters = 0

    def encode(self, text, add_special_tokens=True):
        self.num_characters += len(text)
        return super().encode(text, add_special_tokens)

    def least_tokens(self, text):
        return 0


TOKENIZERS = {
    "byte level": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "with a first token": trained(pre_tokenizers.ByteLevel(add_prefix_space=False), prefix=True),
    "metaspace": trained(pre_tokenizers.Metaspace(prepend_scheme="first")),
}
each = pytest.mark.parametrize("name", TOKENIZERS)


@each
@given(
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=900),
    num_kept=st.integers(1, 40),
    side=st.sampled_from(["left", "right"]),
)
def test_a_truncated_text_has_the_tokens_of_the_whole(name, words, num_kept, side):
    tokenizer, text = TOKENIZERS[name], " ".join(words)
    whole = tokenizer.encode(text)
    encoder = PromptEncoder(tokenizer, 1_000)
    prompt = {"prompt": text, "truncate_prompt_tokens": num_kept, "truncation_side": side}
    shown, ids = encoder.encode_prompt(prompt)
    assert ids == (whole[-num_kept:] if side == "left" else whole[:num_kept])
    assert shown == (None if num_kept < len(whole) else text)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("shift", range(4))
def test_tokens_that_the_end_of_a_part_cuts_are_not_kept(side, shift):
    letters = "abcdefghijklmnopqrst"  # longer than the characters that a token is expected to have
    longer = [letters[: length + 1] for length in range(1, len(letters))]
    words = {word: index for index, word in enumerate([*letters, "x", *longer])}
    merges = [(word[:-1], word[-1]) for word in longer]
    tokenizer = Tokenizer(FastBackend(tokenizers.Tokenizer(models.BPE(words, merges))))
    text = "x" * shift + letters * 10_000 + "x" * shift
    whole = tokenizer.encode(text)
    prompt = {"prompt": text, "truncate_prompt_tokens": 8, "truncation_side": side}
    _, ids = PromptEncoder(tokenizer, 1_000).encode_prompt(prompt)
    assert ids == (whole[-8:] if side == "left" else whole[:8])


@each
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("text", ["word and " * 200_000, "fox" * 70_000, "\n" * 200_000])
def test_of_a_long_text_a_part_is_tokenized_if_it_is_truncated(name, side, text):
    tokenizer = TOKENIZERS[name]
    before = tokenizer.num_characters
    prompt = {"prompt": text, "truncate_prompt_tokens": 8, "truncation_side": side}
    _, ids = PromptEncoder(tokenizer, 1_000).encode_prompt(prompt)
    assert len(ids) == 8
    assert tokenizer.num_characters - before <= 8 * CHARACTERS * (8 + SLACK)


@each
def test_a_text_with_far_too_many_tokens_is_refused_after_a_part(name):
    tokenizer = TOKENIZERS[name]
    before = tokenizer.num_characters
    with pytest.raises(PromptTooLongError, match="more than 100 tokens") as caught:
        PromptEncoder(tokenizer, 100).encode("x " * 1_000_000)
    assert caught.value.param == "prompt"
    assert tokenizer.num_characters - before <= 2 * CHARACTERS * 100


def test_parts_of_few_tokens_do_not_hide_those_that_follow():
    tokenizer = TOKENIZERS["byte level"]
    text = "aaaa" * 600 + "x " * 1_000_000
    before = tokenizer.num_characters
    with pytest.raises(PromptTooLongError):
        PromptEncoder(tokenizer, 100).encode(text, field="negative_prompt")
    assert tokenizer.num_characters - before <= 6 * CHARACTERS * 100


def test_a_text_of_long_tokens_that_fits_is_taken():
    tokenizer = TOKENIZERS["byte level"]
    words = "jumps, " * 1_000
    limit = len(tokenizer.encode(words)) + 1
    assert PromptEncoder(tokenizer, limit).encode_prompt({"prompt": words})[0] == words


@pytest.mark.parametrize("limit", [10, 11, 10**6])
def test_truncation_to_more_than_the_model_takes_is_no_way_around_its_length(limit):
    encoder = PromptEncoder(TOKENIZERS["byte level"], 10)
    with pytest.raises(PromptTooLongError):
        encoder.encode_prompt({"prompt": "x " * 100_000, "truncate_prompt_tokens": limit})


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_errors_name_the_field(field):
    encoder = PromptEncoder(TOKENIZERS["byte level"], 10)
    for text in ("\ud800", "x " * 1_000):
        with pytest.raises(RequestError) as caught:
            encoder.encode(text, field=field)
        assert caught.value.param == field


def test_breaks_are_kept_in_a_part():
    tokenizer = TOKENIZERS["byte level"]
    text = "word and " * 5_000 + "<s> end"
    at = text.index("<s>") + 1
    prompt = {"prompt": text, "add_special_tokens": False, "special_token_breaks": [3, at]}
    _, ids = PromptEncoder(tokenizer, 100).encode_prompt(prompt | {"truncate_prompt_tokens": 20})
    assert ids == tokenizer.encode_broken(text, [3, at])[-20:]
    assert tokenizer.backend.token_to_id("<s>") not in ids


@each
@given(words=st.lists(st.sampled_from(WORDS), max_size=900), max_model_len=st.integers(1, 40))
def test_a_text_of_any_length_is_counted_in_parts(name, words, max_model_len):
    tokenizer, text = TOKENIZERS[name], " ".join(words)
    encoder = PromptEncoder(tokenizer, max_model_len)
    num_tokens, end = encoder.count_part(text, 0)
    num_cut = 0
    while end < len(text):
        num_cut += not re.match(r"\w \w", text[end - 1 :])  # then it is not between two words
        num_more, next_end = encoder.count_part(text, end)
        assert end < next_end <= end + 2 * CHARACTERS * max_model_len
        num_tokens, end = num_tokens + num_more, next_end
    assert abs(num_tokens - len(tokenizer.encode(text))) <= 2 * num_cut


def test_the_parts_of_a_counted_text_are_short_however_long_the_model_is():
    tokenizer = TOKENIZERS["byte level"]
    encoder = PromptEncoder(tokenizer, max_model_len=2 * PART_CHARACTERS // CHARACTERS)
    text = "the fox " * (PART_CHARACTERS // 2)
    assert encoder.count_part(text, 0)[1] == len(text)
    num_tokens, end = encoder.count_part(text * 2, 0)
    assert PART_CHARACTERS <= end <= 2 * PART_CHARACTERS
    assert num_tokens == len(tokenizer.encode(text[:end]))
