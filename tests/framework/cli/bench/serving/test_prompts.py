"""Prompts of a load."""

import json
import random
import statistics

import pytest

from quire.cli.bench.serving.prompts import (
    FIRST_TOKEN_ID,
    FilePrompts,
    LoadRequest,
    RandomPrompts,
    length_of,
    read_prompts,
)
from quire.errors import SettingsError


def fixed(count):
    return length_of(count, "fixed", 0.0)


def test_random_prompts_are_token_ids_of_the_wanted_number():
    found = RandomPrompts(fixed(7), fixed(3), vocab_size=50).requests(5, random.Random(0))
    assert [(len(r.prompt), r.max_tokens) for r in found] == [(7, 3)] * 5
    assert all(FIRST_TOKEN_ID <= token < 50 for r in found for token in r.prompt)
    assert len({tuple(r.prompt) for r in found}) == 5


def test_random_conversations_are_words():
    (request,) = RandomPrompts(fixed(7), fixed(3), is_chat=True).requests(1, random.Random(0))
    (message,) = request.prompt
    assert message["role"] == "user"
    assert len(message["content"].split()) == 7


def test_prompts_share_prefixes_in_turn():
    prompts = RandomPrompts(fixed(2), fixed(1), prefix_len=5, num_prefixes=2)
    found = [r.prompt for r in prompts.requests(4, random.Random(0))]
    assert found[0][:5] == found[2][:5] != found[1][:5] == found[3][:5]
    assert len({tuple(prompt[5:]) for prompt in found}) == 4


def test_equal_seeds_give_equal_prompts():
    prompts = RandomPrompts(length_of(9, "uniform", 0.5), fixed(1))
    assert prompts.requests(9, random.Random(3)) == prompts.requests(9, random.Random(3))


@pytest.mark.parametrize("distribution", ["fixed", "uniform", "lognormal"])
def test_lengths_have_the_wanted_mean(distribution):
    rng, length = random.Random(0), length_of(200, distribution, 0.5)
    assert statistics.fmean(length(rng) for _ in range(4000)) == pytest.approx(200, rel=0.03)


def test_uniform_lengths_stay_within_the_spread():
    rng, length = random.Random(0), length_of(100, "uniform", 0.2)
    found = {length(rng) for _ in range(2000)}
    assert (min(found), max(found)) == (80, 120)


@pytest.mark.parametrize("distribution", ["uniform", "lognormal"])
def test_no_length_is_zero(distribution):
    rng, length = random.Random(0), length_of(1, distribution, 1.0)
    assert min(length(rng) for _ in range(500)) == 1


@pytest.fixture
def read(tmp_path):
    def read(content, output_len=None, is_chat=False):
        path = tmp_path / "prompts"
        path.write_text(content)
        return read_prompts(path, output_len, is_chat=is_chat).entries

    return read


SHAREGPT = {
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Why?"},
        {"from": "gpt", "value": "x" * 40},
        {"from": "human", "value": "And then?"},
    ]
}


def test_lines_have_prompts_and_lengths(read):
    lines = '{"prompt": "a", "max_tokens": 5}\n\n{"prompt": "b", "completion": "12345678"}\n'
    assert read(lines) == [LoadRequest("a", 5), LoadRequest("b", 2)]
    assert read(lines, output_len=9) == [LoadRequest("a", 9), LoadRequest("b", 9)]


def test_the_first_question_of_a_conversation_of_sharegpt_is_taken(read):
    content = json.dumps([SHAREGPT, {"conversations": [{"from": "gpt", "value": "hm"}]}])
    assert read(content) == [LoadRequest("Why?", 10)]
    assert read(content, is_chat=True) == [
        LoadRequest(
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}], 10
        )
    ]


def test_messages_are_conversations(read):
    messages = [{"role": "user", "content": "hi"}]
    assert read(json.dumps({"messages": messages}), 4, True) == [LoadRequest(messages, 4)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no prompts"),
        ("nonsense", "neither JSON lines nor a JSON list"),
        ("3", "entry 1 is no object"),
        ('{"text": "a"}', "entry 1 has no `prompt`, `messages` or `conversations`"),
        ('{"conversations": [{"value": 1}]}', "must have `from` and `value`"),
    ],
)
def test_a_file_that_has_no_prompts_is_refused(read, content, message):
    with pytest.raises(SettingsError, match=message):
        read(content)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match="no such file: "):
        read_prompts(tmp_path / "none", None, is_chat=False)


def test_each_prompt_of_a_file_is_sent_once_before_one_is_sent_again():
    entries = [LoadRequest(text, 1) for text in "abc"]
    found = FilePrompts(entries).requests(7, random.Random(0))
    assert len(found) == 7
    assert {r.prompt for r in found[:3]} == {r.prompt for r in found[3:6]} == {"a", "b", "c"}
