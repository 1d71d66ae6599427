# ruff: noqa: RUF001 - the markers of DeepSeek have such bars
"""The chat templates under examples/ write calls that the parsers of their families read."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.compose.choices.parser_choice import ParsedModel, choose_parser
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.testing.tool_parsing import read_events
from quire_tool_parsers import families

FOLDER = Path(__file__).parents[3] / "examples" / "chat_templates"


@dataclass(frozen=True)
class Example:
    """A template, its family, the text that ends a turn, and the model's architecture."""

    family: str
    end: str
    architecture: str = "LlamaForCausalLM"
    is_alone: bool = False  # calls have no text beside them
    switch: tuple[str, bool] | None = None  # of thinking, to other than the default


EXAMPLES = {
    "deepseek_v3": Example("deepseek_v3", "<｜end▁of▁sentence｜>"),
    "deepseek_v31": Example("deepseek_v31", "<｜end▁of▁sentence｜>", switch=("thinking", True)),
    "functiongemma": Example("functiongemma", "<end_of_turn>\n"),
    "gemma3_pythonic": Example("pythonic", "<end_of_turn>\n", is_alone=True),
    "glm45": Example("glm45", "", switch=("enable_thinking", False)),
    "granite": Example("granite", "<|end_of_text|>\n", switch=("thinking", True)),
    "hermes": Example("hermes", "<|im_end|>\n", switch=("enable_thinking", False)),
    "internlm": Example("internlm", "<|im_end|>\n"),
    "kimi_k2": Example("kimi_k2", "<|im_end|>"),
    "llama3_json": Example("llama3_json", "<|eot_id|>", is_alone=True),
    "llama4_pythonic": Example("llama4_pythonic", "<|eot|>", is_alone=True),
    "mistral": Example("mistral", "</s>", is_alone=True),
    "phi4_mini_json": Example("phi4_mini_json", "<|end|>", "Phi3ForCausalLM"),
    "pythonic": Example("pythonic", "<|eot_id|>", is_alone=True),
    "qwen3_coder": Example("qwen3_coder", "<|im_end|>\n", switch=("enable_thinking", False)),
    "xlam": Example("xlam", "<|eot_id|>", is_alone=True),
}
each_template = pytest.mark.parametrize("name", EXAMPLES)
USER = {"role": "user", "content": "What is the weather?"}
TOOLS = [{"type": "function", "function": {"name": "find"}}]


def template_of(name):
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text("utf-8"))


def parser_class(name):
    return families.__getattr__(EXAMPLES[name].family)


def type_of(value):
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
             dict: "object", type(None): "null"}  # fmt: skip
    return kinds[type(value)]


def tools_for(calls):
    """Return the tools of calls, with the types of their arguments."""
    properties = {}
    for tool, arguments in calls:
        types = {key: {"type": type_of(value)} for key, value in arguments.items()}
        properties[tool] = properties.get(tool, {}) | types
    return [
        {"type": "function", "function": {
            "name": tool, "parameters": {"type": "object", "properties": given}}}
        for tool, given in properties.items()
    ]  # fmt: skip


def assistant(name, calls, content=None):
    """Return a turn with calls, whose ids are those that the template takes."""
    ids = [parser_class(name).prompt_call_id(f"call_{i}", tool, i) for i, (tool, _) in
           enumerate(calls)]  # fmt: skip
    written = [
        {"id": call_id, "type": "function", "function": {"name": tool, "arguments": json.dumps(a)}}
        for call_id, (tool, a) in zip(ids, calls, strict=True)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}


def completion(name, calls, content=None):
    """Return what the template writes for the assistant, from the prompt on to the end mark."""
    template, tools = template_of(name), tools_for(calls)
    prompt = template.render([USER], tools).text
    turn = assistant(name, calls, content)
    whole = template.render([USER, turn], tools, add_generation_prompt=False).text
    assert whole.startswith(prompt)
    assert whole.endswith(EXAMPLES[name].end)
    return whole[len(prompt) : len(whole) - len(EXAMPLES[name].end)]


def read(name, text, tools):
    parser = parser_class(name).for_tools([tool["function"] for tool in tools])
    found = read_events([*parser.feed(text), *parser.close()])
    content = found.content.replace("<think></think>", "").strip()
    return content, [(tool, json.loads(arguments)) for tool, arguments in found.calls]


NESTED = {
    "place": {"name": "Zürich 東京 😀", "at": [47.37, [-8, None]], "is_near": True},
    "days": 3,
}
TEXTS = {"text": 'a "quoted" word, \\ and {x}: [1]\n\n  two lines ', "empty": "", "digits": "123"}


@each_template
@pytest.mark.parametrize(
    "calls",
    [
        [("find", {})],
        [("get_weather", NESTED)],
        [("write", TEXTS)],
        [("find", NESTED), ("find", {}), ("write", TEXTS)],
        [("find", {"a": None, "b": [], "c": {}, "d": -0.5, "e": 1e30, "f": [[[]]]})],
    ],
)
def test_calls_of_an_earlier_turn_are_read_as_they_were(name, calls):
    text = completion(name, calls)
    assert read(name, text, tools_for(calls)) == ("", calls)
    if not EXAMPLES[name].is_alone:
        text = completion(name, calls, "Let me look.")
        assert read(name, text, tools_for(calls)) == ("Let me look.", calls)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\r<"), max_size=10)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
calls_of_a_turn = st.lists(
    st.tuples(names, st.dictionaries(names, values, max_size=3)),
    min_size=1, max_size=3, unique_by=lambda call: call[0],
)  # fmt: skip


@given(st.sampled_from(sorted(EXAMPLES)), calls_of_a_turn)
@settings(max_examples=150, deadline=None)
def test_any_call_is_read_as_it_was(name, calls):
    assert read(name, completion(name, calls), tools_for(calls)) == ("", calls)


@each_template
def test_a_conversation_is_rendered_with_all_its_texts(name):
    turn = assistant(name, [("find", {"city": "Oslo"}), ("now", {})])
    ids = [call["id"] for call in turn["tool_calls"]]
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        turn,
        {"role": "tool", "tool_call_id": ids[0], "content": "sunny today"},
        {"role": "tool", "tool_call_id": ids[1], "content": "12:00 UTC"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "Thanks!"},
    ]
    tools = [{"type": "function", "function": {"name": "find", "description": "Finds a city"}}]
    text = template_of(name).render(messages, tools).text
    for part in ("Be brief.", USER["content"], "Oslo", "sunny today", "12:00 UTC", "It is sunny.",
                 "Thanks!", "Finds a city"):  # fmt: skip
        assert text.count(part) == 1, part
    assert "Finds a city" not in template_of(name).render(messages).text
    assert "Undefined" not in text


@pytest.mark.parametrize(
    ("name", "result", "following"),
    [
        ("deepseek_v3", "sunny<｜tool▁output▁end｜><｜tool▁outputs▁end｜>", "<｜Assistant｜>"),
        ("deepseek_v31", "sunny<｜tool▁output▁end｜>", "<｜Assistant｜></think>"),
    ],
)
def test_deepseek_goes_on_directly_behind_results(name, result, following):
    turn = assistant(name, [("find", {"city": "Oslo"})])
    tool = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "sunny"}
    answer = {"role": "assistant", "content": "It is."}
    prompt = template_of(name).render([USER, turn, tool], TOOLS).text
    assert prompt.endswith(result)
    again = template_of(name).render([USER, turn, tool, turn, tool], TOOLS).text
    assert again.startswith(prompt + completion(name, [("find", {"city": "Oslo"})]))
    whole = template_of(name).render([USER, turn, tool, answer, USER], TOOLS).text
    user = template_of(name).render([USER]).text.removeprefix("<｜begin▁of▁sentence｜>")
    assert whole == f"{prompt}It is.{EXAMPLES[name].end}{user}"
    assert user.endswith(following)


@each_template
def test_arguments_that_are_no_json_do_not_end_the_conversation(name):
    turn = assistant(name, [("find", {})])
    turn["tool_calls"][0]["function"]["arguments"] = '{"city": "Os'
    assert USER["content"] in template_of(name).render([USER, turn, USER], TOOLS).text


@pytest.mark.parametrize("name", [name for name, each in EXAMPLES.items() if each.switch])
def test_thinking_is_switched_by_a_variable(name):
    variable, value = EXAMPLES[name].switch
    default = template_of(name).render([USER]).text
    assert template_of(name).render([USER], template_kwargs={variable: not value}).text == default
    assert template_of(name).render([USER], template_kwargs={variable: value}).text != default


@each_template
def test_auto_chooses_the_family_of_the_template(name, quire_registries):
    template = (FOLDER / f"{name}.jinja").read_text("utf-8")
    model = ParsedModel(EXAMPLES[name].architecture, template)
    choice = choose_parser(quire_registries.tool_parsers, "auto", model)
    assert choice is not None
    assert choice.entry.name == EXAMPLES[name].family


def test_every_template_is_an_example_and_on_the_page():
    stems = {path.stem for path in FOLDER.glob("*.jinja")}
    assert stems == set(EXAMPLES)
    page = (FOLDER / "README.md").read_text("utf-8")
    assert all(f"`{stem}.jinja`" in page for stem in stems)
