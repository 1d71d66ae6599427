"""A constraint begins after the thinking that the chat template opened, in a whole engine."""

import json
import re

import pytest

from quire import LLM, SamplingParams, StructuredOutputsParams
from quire.errors import GrammarError
from quire.testing.checkpoints import write_checkpoint
from quire_tool_parsers.hermes import HermesToolParser

TEMPLATE = (
    "{# <tool_call> <think> #}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if think is not defined %}{{ '<think>\\n' }}{% endif %}"
)
MARKS = ("<think>", "</think>")
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
    assert all(not a.text or a.finish_reason == "length" for a in unfinished)


def test_a_forced_call_follows_the_thinking(llm):
    calls = HermesToolParser.call_grammar([TOOL["function"]], at_least_one=True)
    completions = [a for a in complete(llm, calls=calls) if a.tool_calls]
    assert len(completions) >= 2
    for completion in completions:
        assert completion.reasoning
        assert {call.name for call in completion.tool_calls} == {"now"}
        assert json.loads(completion.tool_calls[0].arguments) == {"a": 1}


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


def test_an_end_of_thinking_of_several_tokens_is_refused_by_name(tmp_path):
    with LLM(write_model(tmp_path, with_marks=False), max_model_len=512) as llm:
        with pytest.raises(GrammarError, match=r"'</think>'.* is 8 tokens") as caught:
            complete(llm, regex="a")
        assert caught.value.param == "structured_outputs"
        params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
        (result,) = llm.chat(HELLO, params, chat_template_kwargs={"think": False})
        assert result.outputs[0].text == "a"
