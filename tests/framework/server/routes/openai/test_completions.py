"""What OpenAI's client sees of /v1/completions."""

import asyncio
from collections import Counter

import httpx
import openai
import pytest
from openai import OpenAI

from quire.frontend.intake.prompt import EncodedPrompt
from quire.outputs import Logprob
from quire.sampling_params import SamplingParams
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.generation import Generation
from quire.server.routes.openai.echo import Echo
from quire.server.wire.openai_logprobs import TokenSpelling
from quire.server.wire.protocol import SamplingBody
from quire.server.wire.sender import Sender


def complete(client, prompt="Once", **fields):
    return client.completions.create(model="demo", prompt=prompt, max_tokens=60, **fields)


@pytest.fixture
def lenient(served):
    """Chunks of OpenAI's old API have nulls that the client's own types forbid."""
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_text_goes_on(client, served):
    response = complete(client)
    assert response.choices[0].text == "I am a script."
    assert response.choices[0].finish_reason == "stop"
    assert response.id.startswith("cmpl-")
    assert served.core.requests[0].token_ids == served.frontend.tokenizer.encode("Once")
    assert response.usage.prompt_tokens == len(served.core.requests[0].token_ids)


def test_without_max_tokens_a_completion_has_sixteen(client, served):
    served.texts.by_prompt = {"Once": "one two three four five six seven eight nine ten " * 3}
    response = client.completions.create(model="demo", prompt="Once")
    assert response.choices[0].finish_reason == "length"
    assert response.usage.completion_tokens == 16


@pytest.mark.parametrize("tokens_per_step", [1, 4])
@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_streamed_and_full_completions_are_equal(
    client, lenient, served, logprobs, tokens_per_step
):
    served.texts.by_prompt = {"Once": 'über 日本 👩‍👩‍👧 \\ " done'}
    served.core.tokens_per_step = tokens_per_step
    whole = complete(client, logprobs=logprobs).choices[0]
    chunks = list(complete(lenient, logprobs=logprobs, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    if logprobs is None:
        assert whole.logprobs is None
        return
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [x for chunk in chunks for x in getattr(chunk.choices[0].logprobs, name)]
        assert streamed == getattr(whole.logprobs, name)
    offsets = whole.logprobs.text_offset
    assert offsets == sorted(offsets)
    named = [(o, t) for o, t in zip(offsets, whole.logprobs.tokens, strict=True) if t[:1] != "b"]
    assert [t for o, t in named[:-1] if whole.text[o : o + len(t)] != t] == []
    assert len(named) > 3
    assert all(len(top) >= max(1, logprobs) for top in whole.logprobs.top_logprobs)


def test_several_prompts_and_n_are_numbered_prompt_by_prompt(client, lenient, served):
    served.texts.by_prompt = {"red": ["r0", "r1"], "blue": ["b0 and more", "b1"]}
    wanted = {0: "r0", 1: "r1", 2: "b0 and more", 3: "b1"}
    response = complete(client, ["red", "blue"], n=2)
    assert {choice.index: choice.text for choice in response.choices} == wanted
    tokens = {tuple(request.token_ids) for request in served.core.requests}
    assert response.usage.prompt_tokens == sum(map(len, tokens))
    streamed = dict.fromkeys(wanted, "")
    finishes = Counter()
    for chunk in complete(lenient, ["red", "blue"], n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
            finishes[choice.index] += choice.finish_reason is not None
    assert streamed == wanted
    assert set(finishes.values()) == {1}


def test_token_ids_are_prompts_too(client, served):
    complete(client, [300, 301, 302])
    complete(client, [[300, 301], [303]])
    assert sorted(request.token_ids for request in served.core.requests) == [
        [300, 301],
        [300, 301, 302],
        [303],
    ]


def test_echo_puts_the_prompt_before_every_completion(client, lenient, served):
    ids = served.frontend.tokenizer.encode("two words")
    assert complete(client, ["one", "two"], echo=True).choices[1].text == "twoI am a script."
    assert complete(client, ids, echo=True).choices[0].text == "two wordsI am a script."
    chunks = list(complete(lenient, "one", echo=True, stream=True, n=2))
    texts = Counter()
    for choice in (c for chunk in chunks for c in chunk.choices):
        texts[choice.index, choice.text.startswith("one")] += 1
    assert (texts[0, True], texts[1, True]) == (1, 1)


@pytest.mark.parametrize("prompt_chunk", [2, 1000])
def test_echo_with_logprobs_tells_how_likely_the_prompt_was(lenient, served, prompt_chunk):
    served.core.prompt_chunk = prompt_chunk
    prompt = "Straße in 日本, 👩‍👩‍👧 and more"
    fields = {"echo": True, "logprobs": 2}
    choice = complete(lenient, prompt, **fields).choices[0]
    ids = served.core.requests[0].token_ids
    shown = choice.logprobs
    assert choice.text == prompt + "I am a script."
    assert len(shown.tokens) == len(shown.token_logprobs) == len(shown.text_offset)
    assert (shown.token_logprobs[0], shown.top_logprobs[0]) == (None, None)
    assert shown.token_logprobs[1 : len(ids)] == [-0.25] * (len(ids) - 1)
    assert all(len(top) >= 2 for top in shown.top_logprobs[1:])
    placed = zip(shown.tokens, shown.text_offset, strict=True)
    named = [(token, o) for token, o in placed if not token.startswith("bytes:")]
    assert [t for t, o in named[:-1] if choice.text[o : o + len(t)] != t] == []
    assert shown.text_offset[len(ids)] == len(prompt)
    assert len(named) > 10
    pieces = [
        c for chunk in complete(lenient, prompt, stream=True, **fields) for c in chunk.choices
    ]
    assert "".join(piece.text for piece in pieces) == choice.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [x for piece in pieces for x in getattr(piece.logprobs, name)]
        assert streamed == getattr(shown, name)


def test_an_echo_of_no_tokens_is_the_prompt_alone(lenient, served):
    fields = {"model": "demo", "prompt": "one two three", "max_tokens": 0, "echo": True}
    choice = (response := lenient.completions.create(**fields, logprobs=1)).choices[0]
    ids = served.core.requests[0].token_ids
    assert (choice.text, choice.finish_reason) == ("one two three", "length")
    assert len(choice.logprobs.tokens) == len(ids) == response.usage.prompt_tokens
    assert response.usage.completion_tokens == 0
    assert "".join(choice.logprobs.tokens) == "one two three"
    chunks = list(lenient.completions.create(**fields, stream=True))
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == "one two three"
    with pytest.raises(openai.BadRequestError, match="max_tokens must be"):
        lenient.completions.create(**(fields | {"echo": False}))


def test_an_echo_leaves_no_room_for_tokens_that_its_text_does_not_show(served):
    tokenizer = served.frontend.tokenizer
    special = tokenizer.eos_token_ids[0]
    ids = [special, *tokenizer.encode("one two", add_special_tokens=False)]
    rows = [None, *({i: Logprob(-1.0, 1)} for i in ids[1:])]
    shown = Echo(EncodedPrompt("one two", ids), TokenSpelling(tokenizer), 0).logprobs(rows)
    assert shown.text_offset[:2] == [0, 0]
    spelt = tokenizer.decode([special], skip_special_tokens=False)
    shown = Echo(EncodedPrompt(spelt + "one two", ids), TokenSpelling(tokenizer), 0).logprobs(rows)
    assert shown.text_offset[:2] == [0, len(spelt)]


@pytest.mark.parametrize("prompt_chunk", [2, 1000])
def test_prompt_logprobs_stand_with_the_first_choice_of_each_prompt(
    client, lenient, served, prompt_chunk
):
    served.core.prompt_chunk = prompt_chunk
    prompts = [[300, 301, 302, 303], [304]]
    fields = {"n": 2, "extra_body": {"prompt_logprobs": 0}}
    choices = sorted(complete(client, prompts, **fields).choices, key=lambda c: c.index)
    wanted = [None, *({str(i): [-0.25, 1]} for i in prompts[0][1:])]

    def plain(rows):
        return [
            row and {key: [found["logprob"], found["rank"]] for key, found in row.items()}
            for row in rows
        ]

    assert plain(choices[0].prompt_logprobs) == wanted
    assert plain(choices[2].prompt_logprobs) == [None]
    assert not any(hasattr(choices[i], "prompt_logprobs") for i in (1, 3))
    streamed = {0: [], 2: []}
    for chunk in complete(lenient, prompts, stream=True, **fields):
        for choice in chunk.choices:
            rows = choice.model_extra.get("prompt_logprobs")
            if rows:
                streamed[choice.index] += plain(rows)
    assert streamed == {0: wanted, 2: [None]}


def test_too_many_prompt_logprobs_for_one_response_are_refused(client, served):
    prompts = [[300] * 500] * 60  # 30,000 tokens
    with pytest.raises(openai.BadRequestError, match="30000 prompt tokens") as caught:
        complete(client, prompts, extra_body={"prompt_logprobs": 20})
    assert caught.value.param == "prompt_logprobs"
    assert served.core.requests == []


def test_usage_ends_a_stream_that_asks_for_it(client, lenient):
    chunks = list(complete(lenient, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == complete(client).usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_schema_reaches_the_engine(client, served):
    constraint = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    complete(client, extra_body={"response_format": constraint})
    assert served.core.requests[0].params.structured_outputs.json == {"type": "object"}


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ([[]], {}, "prompt"),
        (["a", 1], {}, "prompt"),
        ([1, True], {}, "prompt"),
        ([[1], [2.5]], {}, "prompt"),
        ([-1], {}, "prompt"),
        ([10**6], {}, "prompt"),
        (["a"] * 257, {}, "prompt"),
        (["a"] * 200, {"n": 100}, "prompt"),
        ("a", {"suffix": "z"}, "suffix"),
        ("a", {"n": 3, "best_of": 2}, "best_of"),
        ("a", {"echo": True, "logprobs": 1, "n": 2}, "echo"),
        ("a", {"extra_body": {"cache_salt": "\u200b"}}, "cache_salt"),
        ("a", {"extra_body": {"timeout_s": -1}}, "timeout_s"),
        ("a", {"logprobs": 21}, "logprobs"),
        ("a", {"logit_bias": {"1": 1}}, "logit_bias"),
        ("a", {"extra_body": {"prompt_logprobs": -1}}, "prompt_logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, prompt, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, prompt, **fields)
    assert caught.value.param == param
    assert param in caught.value.message


def test_one_wrong_prompt_stops_the_others(client, served, wait_for):
    served.core.step_s = 0.02
    with pytest.raises(openai.BadRequestError):
        complete(client, ["good", ""])
    assert wait_for(lambda: not served.core.running)


def test_many_short_prompts_leave_the_event_loop_alone(served):
    served.texts.by_prompt = {"": "x"}
    prompts = [{"prompt": "the " * 250}] * 256  # 256,000 characters
    params = SamplingParams(max_tokens=1)
    body = SamplingBody()
    generation = Generation(served.frontend, LogprobBudget(), prompts, params, None, body, Sender())

    async def run():
        return [index async for index, _ in generation.deltas()]

    async def main():
        turns_encoding = turns_after = 0
        done = asyncio.create_task(run())
        while not done.done():
            await asyncio.sleep(0)
            if generation.encoded:
                turns_after += 1
            else:
                turns_encoding += 1
        assert sorted(await done) == list(range(256))
        return turns_encoding, turns_after

    turns_encoding, turns_after = asyncio.run(main())
    assert turns_encoding > 10  # on the loop itself it would be one turn
    assert turns_after > 256  # others have theirs between any two prompts


def test_tokenize_and_detokenize_are_each_others_inverse(served):
    text = "Grüße 👩‍👩‍👧 and more"
    tokens = httpx.post(f"{served.url}/tokenize", json={"prompt": text}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == served.frontend.max_model_len
    back = httpx.post(f"{served.url}/detokenize", json={"tokens": tokens["tokens"]}).json()
    assert back == {"prompt": text}
    wrong = httpx.post(f"{served.url}/detokenize", json={"tokens": [-1]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tokens")


def test_token_ids_are_those_of_each_prompt_and_of_its_completions(lenient, served):
    served.texts.by_prompt = {"red": "one two", "blue": "three"}
    fields = {"n": 2, "extra_body": {"return_token_ids": True}}
    whole = complete(lenient, ["red", "blue"], **fields)
    encode, (eos, *_) = served.frontend.tokenizer.encode, served.frontend.tokenizer.eos_token_ids
    prompts = [encode("red")] * 2 + [encode("blue")] * 2
    wanted = [[*encode("one two"), eos]] * 2 + [[*encode("three"), eos]] * 2
    assert [choice.prompt_token_ids for choice in whole.choices] == prompts
    assert [choice.token_ids for choice in whole.choices] == wanted
    streamed = {index: [] for index in range(4)}
    given = {index: [] for index in range(4)}
    for chunk in complete(lenient, ["red", "blue"], stream=True, **fields):
        for choice in chunk.choices:
            streamed[choice.index] += choice.token_ids
            given[choice.index] += [choice.model_extra.get("prompt_token_ids")]
    assert list(streamed.values()) == wanted
    for index, prompt in enumerate(prompts):
        assert given[index] == [prompt] + [None] * (len(given[index]) - 1)


def test_logprobs_may_name_tokens_by_their_ids(lenient, served):
    fields = {"echo": True, "logprobs": 1}
    plain = complete(lenient, "one", **fields).choices[0].logprobs
    named = complete(lenient, "one", **fields, extra_body={"return_tokens_as_token_ids": True})
    shown = named.choices[0].logprobs
    prompt = list(served.core.requests[0].token_ids)
    assert shown.tokens[: len(prompt)] == [f"token_id:{token_id}" for token_id in prompt]
    assert shown.text_offset == plain.text_offset
    assert shown.token_logprobs == plain.token_logprobs
    assert all(name.startswith("token_id:") for top in shown.top_logprobs[1:] for name in top)


def test_each_event_may_have_the_token_counts_so_far(lenient):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(complete(lenient, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert len(set(counts)) > 4
    assert chunks[-1].usage == complete(lenient).usage
