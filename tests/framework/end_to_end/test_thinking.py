"""A constraint begins after the thinking that the chat template opened, in a whole engine."""

import asyncio
import json
import re

import pytest
from asgi_parts import post

from quire import LLM, AsyncEngine, SamplingParams, StructuredOutputsParams
from quire.call_grammar import CallGrammar, CallShape
from quire.config import ServerSettings
from quire.server.app import create_app
from quire.testing.checkpoints import write_checkpoint
from quire_tool_parsers import families

TEMPLATE = (
    "{# <tool_call> <think> #}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if think is not defined %}{{ '<think>\\n' }}{% endif %}"
)
MARKS = ("<think>", "</think>", "<tool_call>")
NUM_COMPLETIONS = 10
HELLO = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "now",
        "parameters": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]},
    },
}


def write_model(folder, with_marks):
    """Write a model that samples its few tokens uniformly, the end of thinking included."""
    folder = write_checkpoint(folder, "Qwen3ForCausalLM", vocab_size=262).folder
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    if with_marks:
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(add_marks(json.loads(path.read_text()))))
    return str(folder)


def add_marks(tokenizer):
    """Replace unused tokens by the marks."""
    for number, mark in enumerate(MARKS):
        token_id = tokenizer["model"]["vocab"].pop(f"<|unused{number}|>")
        tokenizer["model"]["vocab"][mark] = token_id
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        tokenizer["added_tokens"].append({"id": token_id, "content": mark} | flags)
    return tokenizer


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("model"), with_marks=True)
    with LLM(folder, max_model_len=512) as llm:
        yield llm


def complete(llm, **constraint):
    params = SamplingParams(
        temperature=100.0,
        seed=3,
        n=NUM_COMPLETIONS,
        max_tokens=480,
        structured_outputs=StructuredOutputsParams(**constraint),
    )
    tools = [TOOL] if "calls" in constraint else None
    return llm.chat(HELLO, params, tools=tools)[0].outputs


def test_the_text_after_the_thinking_follows_its_constraint(llm):
    completions = complete(llm, regex="[a-c]{3}(?:</think>)?")
    finished = [a for a in completions if a.text and a.finish_reason == "stop"]
    assert len(finished) >= 2
    for completion in finished:
        assert re.fullmatch("[a-c]{3}(?:</think>)?", completion.text), completion.text
        assert completion.reasoning
    unfinished = [a for a in completions if a not in finished]
    assert all(a.finish_reason == "length" for a in unfinished)


def test_a_forced_call_follows_the_thinking(llm):
    calls = families.hermes.call_grammar([TOOL["function"]], at_least_one=True)
    called = [a for a in complete(llm, calls=calls) if a.tool_calls]
    completions = [a for a in called if a.finish_reason == "stop"]
    assert len(completions) >= 2
    for completion in completions:
        assert completion.reasoning
        assert {call.name for call in completion.tool_calls} == {"now"}
        assert json.loads(completion.tool_calls[0].arguments) == {"a": 1}


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_model_that_would_end_its_turn_in_the_thinking_meets_its_constraint(
    tmp_path, async_scheduling
):
    folder = write_model(tmp_path, with_marks=True)
    forced = families.hermes.call_grammar([TOOL["function"]], at_least_one=True)
    with LLM(folder, max_model_len=128, async_scheduling=async_scheduling) as llm:
        tokenizer = llm.get_tokenizer()
        (eos,), end = tokenizer.eos_token_ids, tokenizer.backend.token_to_id("</think>")

        def complete(tools=None, **constraint):
            params = SamplingParams(
                temperature=0, max_tokens=60, logit_bias={eos: 100.0},
                structured_outputs=StructuredOutputsParams(**constraint) if constraint else None,
            )  # fmt: skip
            return llm.chat(HELLO, params, tools=tools)[0].outputs[0]

        assert complete().token_ids == [eos]
        answered = complete(choice=("yes", "no"))
        assert answered.token_ids[:2] == [eos, end]
        assert answered.token_ids[-1] == eos
        assert (answered.text in ("yes", "no"), answered.finish_reason) == (True, "stop")
        assert answered.reasoning is None
        called = complete([TOOL], calls=forced)
        assert called.token_ids[:2] == [eos, end]
        (call,) = called.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("now", {"a": 1})


@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_thinking_ends_when_its_budget_is_used_up(tmp_path, budget, async_scheduling):
    folder = write_model(tmp_path, with_marks=True)
    options = {"max_model_len": 128, "async_scheduling": async_scheduling}
    params = SamplingParams(
        temperature=100.0, seed=5, n=NUM_COMPLETIONS, max_tokens=40, ignore_eos=True,
        thinking_token_budget=budget,
    )  # fmt: skip
    free = SamplingParams(temperature=100.0, seed=5, n=2, max_tokens=40, ignore_eos=True)
    with LLM(folder, **options) as llm:
        end = llm.get_tokenizer().backend.token_to_id("</think>")
        limited, unlimited = llm.chat([HELLO, HELLO], [params, free])
        (alone,) = llm.chat(HELLO, params)
    assert alone.outputs == limited.outputs
    for completion in limited.outputs:
        assert end in completion.token_ids[: budget + 1]
        assert len(completion.token_ids) == 40
    for mine, theirs in zip(limited.outputs, unlimited.outputs, strict=False):
        if end not in theirs.token_ids[:budget]:
            assert mine.token_ids[: budget + 1] == [*theirs.token_ids[:budget], end]


def test_a_constraint_applies_after_thinking_that_was_ended(llm):
    params = SamplingParams(
        temperature=100.0, seed=3, n=NUM_COMPLETIONS, max_tokens=20, thinking_token_budget=4,
        structured_outputs=StructuredOutputsParams(choice=("yes", "no")),
    )  # fmt: skip
    for completion in llm.chat(HELLO, params)[0].outputs:
        assert completion.text in ("yes", "no")
        assert completion.finish_reason == "stop"


def test_a_completion_that_opens_its_thinking_has_the_budget_too(llm):
    tokenizer = llm.get_tokenizer().backend
    start, end = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("</think>")
    params = SamplingParams(
        temperature=0, max_tokens=12, logit_bias={start: 100.0}, thinking_token_budget=3,
        ignore_eos=True,
    )  # fmt: skip
    (result,) = llm.chat(HELLO, params, chat_template_kwargs={"think": False})
    assert result.outputs[0].token_ids[:5] == [start, start, start, start, end]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_budget_cuts_no_call_that_begins_in_the_thinking(tmp_path, async_scheduling):
    folder = write_model(tmp_path, with_marks=True)
    with LLM(folder, max_model_len=128, async_scheduling=async_scheduling) as llm:
        tokenizer = llm.get_tokenizer().backend
        opener, end = tokenizer.token_to_id("<tool_call>"), tokenizer.token_to_id("</think>")
        params = SamplingParams(
            temperature=0, max_tokens=6, logit_bias={opener: 100.0}, thinking_token_budget=3,
            ignore_eos=True,
        )  # fmt: skip
        (called,) = llm.chat(HELLO, params, tools=[TOOL])
        (thought,) = llm.chat(HELLO, params)
    assert called.outputs[0].token_ids == [opener] * 6
    assert thought.outputs[0].token_ids[:4] == [opener, opener, opener, end]


def test_a_call_that_begins_in_the_thinking_follows_the_schema_of_a_strict_tool(tmp_path):
    folder = write_model(tmp_path, with_marks=True)
    calls = families.hermes.call_grammar([TOOL["function"]], at_least_one=False)
    with LLM(folder, max_model_len=512) as llm:
        backend = llm.get_tokenizer().backend
        opener, end = backend.token_to_id("<tool_call>"), backend.token_to_id("</think>")
        params = SamplingParams(
            temperature=30.0, seed=3, n=4, max_tokens=200, logit_bias={opener: 100.0},
            structured_outputs=StructuredOutputsParams(calls=calls),
        )  # fmt: skip
        outputs = llm.chat(HELLO, params, tools=[TOOL])[0].outputs
    called = [output for output in outputs if output.tool_calls]
    assert any(end not in output.token_ids for output in called)
    for output in called:
        assert {call.name for call in output.tool_calls} == {"now"}
        whole = output.tool_calls[: None if output.finish_reason == "stop" else -1]
        assert all(json.loads(call.arguments) == {"a": 1} for call in whole)
    assert any(len(output.tool_calls) > 1 for output in called)
    assert all(opener not in output.token_ids for output in outputs if output not in called)


CAPITALS = """
from quire.interfaces.tool_parsing import (
    TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart, ToolParser, ToolParserCapabilities,
)


class Capitals(ToolParser):
    capabilities = ToolParserCapabilities(calls_end_reasoning=True)
    num_calls = 0

    def feed(self, delta):
        return [event for character in delta for event in self.read(character)]

    def close(self):
        return []

    def read(self, character):
        if not "A" <= character <= "Z":
            return [TextDelta(character)]
        index, self.num_calls = self.num_calls, self.num_calls + 1
        return [
            ToolCallStart(index, character), ToolCallArguments(index, "{}"), ToolCallEnd(index)
        ]
"""


@pytest.mark.parametrize("is_async", [False, True])
def test_a_constraint_of_ones_own_forces_calls_behind_the_thinking_everywhere(tmp_path, is_async):
    folder = write_model(tmp_path, with_marks=True)
    (tmp_path / "capitals.py").write_text(CAPITALS)
    options = {"max_model_len": 512, "tool_call_parser": str(tmp_path / "capitals.py")}
    calls = CallGrammar((CallShape("F", ("F",)),))
    params = SamplingParams(
        temperature=100.0, seed=3, n=NUM_COMPLETIONS, max_tokens=480,
        structured_outputs=StructuredOutputsParams(calls=calls),
    )  # fmt: skip
    if is_async:
        outputs = asyncio.run(chat_once(folder, params, options))
    else:
        with LLM(folder, **options) as llm:
            outputs = llm.chat(HELLO, params, tools=[TOOL])[0].outputs
    names = ["".join(call.name for call in output.tool_calls) for output in outputs]
    assert {*names} == {"F"}, "a capital in the thinking is none"
    assert any(re.search("[A-Z]", output.reasoning or "") for output in outputs)


async def chat_once(folder, params, options):
    engine = AsyncEngine(folder, **options)
    try:
        return (await engine.chat(HELLO, params, tools=[TOOL])).outputs
    finally:
        await engine.shutdown()


def test_where_no_thinking_is_open_the_constraint_begins_at_once(llm):
    params = SamplingParams(
        temperature=100.0, seed=1, structured_outputs=StructuredOutputsParams(choice=("yes", "no"))
    )
    (result,) = llm.chat(HELLO, params, chat_template_kwargs={"think": False})
    assert result.outputs[0].text in ("yes", "no")


def test_a_prompt_of_tokens_may_open_the_thinking_too(llm):
    ids = llm.get_tokenizer().encode("hi<think>\n")
    constraint = StructuredOutputsParams(choice=("yes", "no"))
    params = SamplingParams(temperature=100.0, seed=1, max_tokens=8, structured_outputs=constraint)
    (result,) = llm.generate([ids], params)
    assert not result.outputs[0].text.startswith(("yes", "no"))


def test_an_end_of_thinking_of_several_tokens_is_forced_and_found(tmp_path):
    constraint = StructuredOutputsParams(regex="[a-c]{3}")
    params = SamplingParams(
        temperature=100.0,
        seed=3,
        n=NUM_COMPLETIONS,
        max_tokens=60,
        thinking_token_budget=7,
        structured_outputs=constraint,
    )
    with LLM(write_model(tmp_path, with_marks=False), max_model_len=512) as llm:
        marker = llm.get_tokenizer().encode("</think>", add_special_tokens=False)
        assert len(marker) == 8
        (result,) = llm.chat(HELLO, params)
    for completion in result.outputs:
        assert completion.token_ids[7:15] == marker
        assert re.fullmatch("[a-c]{3}", completion.text), completion.text
        assert "</think>" not in (completion.reasoning or "")


def test_a_chat_over_http_has_the_same_parameters(tmp_path):
    engine = AsyncEngine(write_model(tmp_path, with_marks=True), max_model_len=96, max_logprobs=-1)
    app = create_app(engine.frontend, ServerSettings(), list)
    common = {
        "messages": HELLO, "temperature": 100.0, "seed": 5, "max_tokens": 30, "ignore_eos": True,
    }  # fmt: skip

    def ask(**fields):
        wire = post(app, "/v1/chat/completions", **common | fields)
        assert wire.status == 200, wire.body
        return wire

    def text_of(wire):
        deltas = [c["delta"] for event in wire.events for c in event["choices"]]
        keys = ("reasoning", "content")
        return ["".join(delta.get(key) or "" for delta in deltas) for key in keys]

    thinks = ask(thinking_token_budget=3, logprobs=True, top_logprobs=-1).json()["choices"][0]
    rows = thinks["logprobs"]["content"]
    assert "</think>" in [row["token"] for row in rows[:4]]
    assert {len(row["top_logprobs"]) for row in rows} == {262}
    streamed = ask(thinking_token_budget=3, stream=True)
    assert text_of(streamed) == [thinks["message"]["reasoning"], thinks["message"]["content"]]
    named = ask(logprobs=True, logprob_token_ids=[70, 71]).json()["choices"][0]["logprobs"]
    assert {len(row["top_logprobs"]) for row in named["content"]} <= {2, 3}
    wire = post(app, "/v1/chat/completions", logprob_token_ids=[70], **common)
    assert (wire.status, wire.error["param"]) == (400, "logprob_token_ids")

    whole = ask(stop_regex="[a-z][^a-z]", thinking_token_budget=0).json()["choices"][0]
    streamed = ask(stop_regex="[a-z][^a-z]", thinking_token_budget=0, stream=True)
    assert text_of(streamed)[1] == whole["message"]["content"]
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", "[a-z][^a-z]")
    pattern = {"max_pattern_size": 1, "min_count": 2}
    repeated = ask(repetition_detection=pattern, logit_bias={"70": 100.0}, temperature=0)
    assert repeated.json()["choices"][0]["finish_reason"] == "repetition"
    best = ask(n=2, best_of=4).json()
    assert (len(best["choices"]), best["usage"]["completion_tokens"]) == (2, 4 * 30)
    asyncio.run(engine.shutdown())
