"""A forced call of gpt-oss is one, although the prompt has opened the thinking."""

import json

import pytest

from quire import LLM, SamplingParams, StructuredOutputsParams
from quire.testing.checkpoints import write_checkpoint
from quire_tool_parsers.harmony_grammar import harmony_grammar

MARKERS = (
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"
)  # fmt: skip
TEMPLATE = (
    "{# <|channel|> <|message|> <|call|> #}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
FUNCTION = {
    "name": "now",
    "parameters": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
HI = [{"role": "user", "content": "hi"}]
CALL = "to=functions.now <|constrain|>json<|message|>"


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    folder = write_checkpoint(
        tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM", vocab_size=270
    ).folder
    _change(folder / "tokenizer_config.json", lambda config: config.update(chat_template=TEMPLATE))
    _change(folder / "tokenizer.json", _with_markers)
    parsers = {"tool_call_parser": "openai", "reasoning_parser": "openai_gptoss"}
    with LLM(str(folder), max_model_len=256, **parsers) as llm:
        yield llm


def _change(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _with_markers(tokenizer):
    for number, marker in enumerate(MARKERS):
        token_id = tokenizer["model"]["vocab"].pop(f"<|unused{number}|>")
        tokenizer["model"]["vocab"][marker] = token_id
        tokenizer["added_tokens"].append({
            "id": token_id, "content": marker, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True,
        })  # fmt: skip


def written(llm, wanted="", *, at_least_one=True, **params):
    """Return the completion of a model that writes the characters of `wanted` where it may."""
    tokenizer = llm.get_tokenizer()
    ids = {i for i in tokenizer.encode(wanted, add_special_tokens=False) if wanted}
    calls = harmony_grammar([FUNCTION], at_least_one=at_least_one)
    params = SamplingParams(
        temperature=1.0,
        seed=3,
        max_tokens=120,
        logit_bias=dict.fromkeys(ids, 100.0),
        structured_outputs=StructuredOutputsParams(calls=calls),
        **params,
    )
    (completion,) = llm.chat(HI, params, tools=TOOLS)[0].outputs
    return completion, tokenizer.decode(completion.token_ids, skip_special_tokens=False)


@pytest.mark.parametrize("budget", [None, 0, 9])
def test_a_forced_call_begins_with_the_turn(llm, budget):
    completion, text = written(llm, "c", thinking_token_budget=budget)
    assert text.startswith(f"<|channel|>commentary {CALL}")
    (call,) = completion.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("now", {"a": 1})
    assert (completion.text, completion.reasoning, completion.finish_reason) == ("", None, "stop")


@pytest.mark.parametrize("budget", [0, 30, 40])
def test_a_budget_ends_the_thinking_before_a_forced_call_and_not_the_call(llm, budget):
    completion, text = written(llm, "a", thinking_token_budget=budget)
    _, _, thought = text.partition("<|channel|>analysis<|message|>")
    thought, _, rest = thought.partition("<|end|>")
    assert set(thought) <= {"a"}
    assert len(thought) == max(0, budget - 10), "channel, analysis and message come before it"
    assert rest.startswith(f"<|start|>assistant<|channel|>commentary {CALL}")
    assert [json.loads(call.arguments) for call in completion.tool_calls] == [{"a": 1}]
    assert (completion.text, completion.reasoning) == ("", thought or None)


@pytest.mark.parametrize("marker", MARKERS[:4])
def test_a_free_turn_with_strict_tools_may_begin_by_any_marker_of_a_header(llm, marker):
    _, text = written(llm, marker, at_least_one=False)
    assert text.startswith(marker * 100)


def test_the_grammars_cover_the_thinking():
    for at_least_one in (True, False):
        assert harmony_grammar([FUNCTION], at_least_one=at_least_one).covers_reasoning
