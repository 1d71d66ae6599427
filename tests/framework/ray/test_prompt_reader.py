"""The router's tokens of a prompt are those that the replica computes."""

import asyncio
import json

import pytest

from quire.config import Settings
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.unknown_fields import UnknownFields
from quire.llm import LLM
from quire.ray.prompt_reader import INLINE_BYTES, NO_TOKENS, PromptReader, owner_of
from quire.sampling_params import SamplingParams

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Tell me of a fox."}]


@pytest.fixture(scope="module")
def reader():
    return PromptReader.load(Settings.from_options({"model": "demo"}))


def read(reader, path, **body):
    return asyncio.run(reader.read(path, json.dumps(body).encode()))


def test_tokens_are_those_that_the_engine_computes(reader):
    text = "The fox has a red coat. " * 3
    with LLM("demo", device="cpu", max_num_seqs=1, max_model_len=128) as llm:
        (told,) = llm.generate([text], SamplingParams(max_tokens=1))
        asked = llm.chat(MESSAGES, SamplingParams(max_tokens=1))
    assert read(reader, COMPLETIONS, prompt=text).token_ids == told.prompt_token_ids
    assert read(reader, CHAT, messages=MESSAGES).token_ids == asked[0].prompt_token_ids


class MarkedTokenizer:
    """A tokenizer with a special token 0 before every text."""

    def encode(self, text, add_special_tokens=True):
        return [0] * add_special_tokens + [ord(character) for character in text]


def test_a_conversation_has_the_special_tokens_of_its_template_only(reader):
    template = ChatTemplate("{{ messages[0].content }}")
    marked = PromptReader(MarkedTokenizer(), template, "demo", UnknownFields())
    messages = [{"role": "user", "content": "a"}]
    assert read(marked, CHAT, messages=messages).token_ids == [97]
    assert read(marked, CHAT, messages=messages, add_special_tokens=True).token_ids == [0, 97]
    assert read(marked, COMPLETIONS, prompt="a").token_ids == [0, 97]
    assert read(marked, COMPLETIONS, prompt="a", add_special_tokens=False).token_ids == [97]


def test_fields_that_the_replica_leaves_out_are_left_out_here(reader):
    lenient = PromptReader.load(Settings.from_options({"model": "demo", "lenient_fields": True}))
    tool = {"type": "function", "function": {"name": "f"}}
    plain = read(reader, CHAT, messages=MESSAGES, tools=[tool])
    assert plain.token_ids
    for odd in ({"tools": [tool | {"stirct": True}]}, {"chat_template_kwargs": {"unread": 1}}):
        body = {"messages": MESSAGES, "tools": [tool]} | odd
        assert read(lenient, CHAT, **body) == plain
        assert read(reader, CHAT, **body) == NO_TOKENS


def test_token_ids_are_taken_as_they_are(reader):
    assert read(reader, COMPLETIONS, prompt=[5, 6, 7]).token_ids == [5, 6, 7]


def test_of_several_prompts_the_first_counts(reader):
    one = read(reader, COMPLETIONS, prompt="A fox").token_ids
    assert read(reader, COMPLETIONS, prompt=["A fox", "A hen"]).token_ids == one
    assert read(reader, COMPLETIONS, prompt=[[5, 6], [7]]).token_ids == [5, 6]


def test_a_long_conversation_begins_with_the_tokens_of_a_short_one(reader):
    short = read(reader, CHAT, messages=MESSAGES).token_ids
    more = [*MESSAGES, {"role": "assistant", "content": "Red."}, *MESSAGES]
    long = read(reader, CHAT, messages=more).token_ids
    assert long[: len(short) - 4] == short[:-4]
    assert len(long) > len(short)


def test_prefixes_belong_to_a_model_and_a_salt(reader):
    plain = read(reader, COMPLETIONS, prompt="A fox", model="demo")
    salted = read(reader, COMPLETIONS, prompt="A fox", model="demo", cache_salt="x")
    adapted = read(reader, COMPLETIONS, prompt="A fox", model="an-adapter")
    assert len({plain.owner, salted.owner, adapted.owner}) == 3
    assert plain.owner == read(reader, COMPLETIONS, prompt="A fox").owner == owner_of(None, None)
    assert salted.owner == owner_of(None, "x")
    assert adapted.owner == owner_of("an-adapter", None)


def test_the_limit_of_a_completion_is_read(reader):
    assert read(reader, COMPLETIONS, prompt="A", max_tokens=7).max_tokens == 7
    assert read(reader, CHAT, messages=MESSAGES, max_completion_tokens=9).max_tokens == 9
    assert read(reader, COMPLETIONS, prompt="A").max_tokens is None
    assert read(reader, COMPLETIONS, prompt="A", max_tokens=-1).max_tokens is None


def test_long_prompts_have_the_same_tokens_in_a_thread(reader):
    word = read(reader, COMPLETIONS, prompt=" fox" * 10).token_ids
    many = read(reader, COMPLETIONS, prompt=" fox" * INLINE_BYTES).token_ids
    assert many[: len(word) - 1] == word[:-1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"prompt": null}',
        b'{"prompt": []}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt": [1, "a"]}',
        b'{"prompt": [[]]}',
        b'{"messages": 5}',
        b'{"messages": [5]}',
        b'{"messages": [], "chat_template_kwargs": 7}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_no_replica_accepts_is_no_error_here(reader, body):
    for path in (COMPLETIONS, CHAT):
        found = asyncio.run(reader.read(path, body))
        assert found.token_ids == [] or body == b'{"messages": []}'


def test_other_paths_have_no_prompt(reader):
    assert read(reader, "/tokenize", prompt="A fox") == NO_TOKENS
