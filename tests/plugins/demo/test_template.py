"""The chat template renders the text that the model was trained on."""

from __future__ import annotations

import json

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from recipe.template import CHECKPOINT, Conversation, render

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
USER = {"role": "user", "content": "What is the weather in Zürich?"}


def _call(arguments):
    return {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def test_a_question_alone_has_no_system_message():
    assert render([USER], add_generation_prompt=True) == (
        "<|im_start|>user\nWhat is the weather in Zürich?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_are_signatures_in_the_system_message():
    assert render([{"role": "system", "content": "Be brief."}, USER], [WEATHER]).startswith(
        "<|im_start|>system\nBe brief.\n\nTools:\n"
        "get_weather(city: string, days: integer): Get the weather in a city.<|im_end|>\n"
    )


def test_a_tool_without_parameters_or_description_is_a_bare_name():
    text = render([USER], [{"type": "function", "function": {"name": "ping"}}])
    assert "Tools:\nping()<|im_end|>" in text


def test_choices_and_unknown_types_are_told():
    properties = {"unit": {"enum": ["c", "f"]}, "when": {"type": ["string", "null"]}, "n": {}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    text = render([USER], [{"type": "function", "function": function}])
    assert "f(unit: c|f, when: any, n: any)" in text


@pytest.mark.parametrize("arguments", ['{"city": "Zürich"}', {"city": "Zürich"}])
def test_a_call_is_written_as_qwen3_writes_it(arguments):
    message = {"role": "assistant", "content": None, "tool_calls": [_call(arguments)]}
    assert Conversation([USER, message], [WEATHER]).answer() == (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    )


def test_parallel_calls_follow_each_other_and_their_results_share_a_turn():
    calls = [_call({"city": "Oslo"}), _call({"city": "Rome"})]
    results = [{"role": "tool", "content": text} for text in ("cold", "warm")]
    text = render([USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results])
    assert '"Oslo"}}\n</tool_call>\n<tool_call>\n{"name"' in text
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\ncold\n</tool_response>\n"
        "<tool_response>\nwarm\n</tool_response><|im_end|>\n"
    )


def test_content_may_be_a_list_of_parts():
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    assert "user\nHello there<|im_end|>" in render([{"role": "user", "content": parts}])


def test_words_before_a_call_stand_on_their_own_line():
    message = {"role": "assistant", "content": "One moment.", "tool_calls": [_call("{}")]}
    assert "assistant\nOne moment.\n<tool_call>\n" in render([USER, message])


def test_any_sandbox_with_tojson_renders_the_same():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    source = (CHECKPOINT / "chat_template.jinja").read_text("utf-8")
    text = environment.from_string(source).render(
        messages=[USER], tools=[WEATHER], add_generation_prompt=True
    )
    assert text == render([USER], [WEATHER], add_generation_prompt=True)
