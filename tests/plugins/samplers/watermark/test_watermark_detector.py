"""Detection: watermarked samples are found, plain ones are not, repetitions do not count."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidRequestError
from quire.testing.sampling.sampled_rows import History, sampled_rows
from quire_samplers.plugin import WATERMARK
from quire_samplers.watermark.watermark import Watermark
from quire_samplers.watermark.watermark_detector import binomial_tail, detect_watermark

VOCAB_SIZE, LENGTH = 500, 200


def sampled(seed, **fields):
    """Tokens of a random model with the watermark, sampled one after the other."""
    generator = torch.Generator().manual_seed(seed)
    step = Watermark(VOCAB_SIZE, torch.device("cpu"))
    token_ids = [1, 2, 3]
    for _ in range(LENGTH):
        logits = torch.randn(1, VOCAB_SIZE, generator=generator) * 2
        recent = token_ids[-8:]
        history = History(recent, num_prompt_tokens=1)
        rows = sampled_rows(WATERMARK, [fields], histories=[history])
        probs = step.apply(logits, rows).softmax(-1)
        token_ids.append(int(torch.multinomial(probs, 1, generator=generator)))
    return token_ids[3:]


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"watermark_greenlist_ratio": 0.5}, {"greenlist_ratio": 0.5}),
        ({"watermark_context_width": 4}, {"context_width": 4}),
        ({"watermark_key": 99}, {"key": 99}),
    ],
)
def test_a_watermarked_completion_is_detected(fields, options):
    token_ids = sampled(0, watermark=True, **fields)
    score = detect_watermark(token_ids, prompt_token_ids=[1, 2, 3], **options)
    assert score.z_score > 4
    assert score.p_value < 1e-4
    assert score.num_scored > 0.9 * LENGTH


def test_plain_completions_are_not_detected():
    random = Random(5)
    for _ in range(20):
        score = detect_watermark([random.randrange(VOCAB_SIZE) for _ in range(LENGTH)])
        assert abs(score.z_score) < 4
        assert score.p_value > 1e-4


def test_the_wrong_key_detects_nothing():
    score = detect_watermark(sampled(1, watermark=True), key=123)
    assert abs(score.z_score) < 4


def test_a_repeated_pair_of_context_and_token_counts_once():
    once = detect_watermark([5, 6, 7, 5])
    assert once.num_scored == 3
    assert detect_watermark([5, 6, 7] * 50) == once


def test_the_prompt_is_context_alone():
    alone = detect_watermark([5, 6, 7])
    after_prompt = detect_watermark([5, 6, 7], prompt_token_ids=[1, 4])
    assert (alone.num_scored, after_prompt.num_scored) == (2, 3)


def tail(at_least, num, ratio):
    terms = (math.comb(num, k) * ratio**k * (1 - ratio) ** (num - k) for k in range(num + 1))
    return math.fsum(list(terms)[at_least:])


def test_the_score_is_that_of_a_binomial_distribution():
    score = detect_watermark(list(range(101)), greenlist_ratio=0.5)
    assert score.num_scored == 100
    assert math.isclose(score.z_score, (score.num_green - 50) / 5)
    assert math.isclose(score.p_value, tail(score.num_green, 100, 0.5))
    for at_least in (0, 1, 70, 100):
        found = binomial_tail(at_least, 100, 0.25)
        assert math.isclose(found, tail(at_least, 100, 0.25), rel_tol=1e-9)


@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.9])
def test_no_terms_of_a_long_tail_are_missing(ratio):
    num, mean = 20_000, int(20_000 * ratio)
    for at_least in (
        0,
        max(0, mean - 3000),
        mean - 100,
        mean,
        mean + 1,
        mean + 100,
        mean + 900,
        num,
    ):
        terms = (
            math.exp(
                math.lgamma(num + 1) - math.lgamma(k + 1) - math.lgamma(num - k + 1)
                + k * math.log(ratio) + (num - k) * math.log1p(-ratio)
            )
            for k in range(at_least, num + 1)
        )  # fmt: skip
        found = binomial_tail(at_least, num, ratio)
        assert math.isclose(found, min(1.0, math.fsum(terms)), rel_tol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 2**31 - 1]), min_size=9, max_size=60),
    st.lists(st.integers(0, 3), max_size=10),
    st.integers(1, 8),
)
def test_each_window_counts_once(token_ids, prompt, width):
    score = detect_watermark(token_ids, prompt_token_ids=prompt, context_width=width)
    known, first = [*prompt, *token_ids], max(len(prompt), width)
    windows = {tuple(known[end - width : end + 1]) for end in range(first, len(known))}
    assert score.num_scored == len(windows)
    green = [
        detect_watermark(window[-1:], prompt_token_ids=window[:-1], context_width=width)
        for window in windows
    ]
    assert score.num_green == sum(each.num_green for each in green)


def test_a_text_of_many_tokens_is_scored():
    random = Random(7)
    token_ids = [random.randrange(50_000) for _ in range(100_000)]
    score = detect_watermark(token_ids, context_width=8)
    assert score.num_scored == 100_000 - 8
    assert abs(score.z_score) < 4
    assert 1e-4 < score.p_value < 1


@pytest.mark.parametrize("wrong", [1.0, True, -1, 2**31, 2**70, "5", None, [5], math.nan])
@pytest.mark.parametrize("param", ["token_ids", "prompt_token_ids"])
def test_what_is_no_token_id_is_refused(param, wrong):
    ids = {"token_ids": [1, 2, 3], "prompt_token_ids": [4, 5]}
    ids[param] = [*ids[param], wrong]
    index = len(ids[param]) - 1
    with pytest.raises(
        InvalidRequestError, match=f"^{param} must be .* at index {index}"
    ) as raised:
        detect_watermark(**ids)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("token_ids", "options", "words"),
    [
        ([], {"prompt_token_ids": [1, 2, 3]}, "from 2 tokens on"),
        ([4], {}, "from 2 tokens on"),
        ([4, 5], {"context_width": 0}, "watermark_context_width"),
        ([4, 5], {"greenlist_ratio": 1.0}, "watermark_greenlist_ratio"),
        ([4, 5], {"key": 2**63}, "watermark_key"),
    ],
)
def test_what_cannot_be_scored_is_refused(token_ids, options, words):
    with pytest.raises(InvalidRequestError, match=words):
        detect_watermark(token_ids, **options)
