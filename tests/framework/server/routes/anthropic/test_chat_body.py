"""A body of Anthropic's API becomes that of a chat: limits, reasoning, format and continuation."""

import msgspec
import pytest

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.anthropic.bodies import CountTokensBody, MessagesBody
from quire.server.routes.anthropic.chat_body import translated

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
ENABLED = {"type": "enabled", "budget_tokens": 64}


def of(kind=MessagesBody, *, limits_thinking=True, **fields):
    given = {"messages": HI} | ({"max_tokens": 9} if kind is MessagesBody else {}) | fields
    body = msgspec.convert(given, kind)
    return translated(body, UnknownFields(), limits_thinking=limits_thinking)


def chat(**fields):
    return of(**fields).chat


def test_fields_of_the_same_name_have_the_same_value():
    given = {
        "model": "demo", "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 7,
        "priority": 2, "timeout_s": 3.0, "cache_salt": "mine", "stream": True, "max_tokens": 5,
        "ignore_eos": True, "stop_token_ids": [4], "structured_outputs": {"regex": "a+"},
    }  # fmt: skip
    found = chat(**given)
    assert {name: getattr(found, name) for name in given} == given


def test_stop_sequences_are_stop_strings():
    assert chat(stop_sequences=["a", "b"]).stop == ["a", "b"]


def test_a_system_prompt_is_the_first_message():
    assert chat(system="Be kind.").messages == [{"role": "system", "content": "Be kind."}, *HI]


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking"])
def test_reasoning_is_switched_by_the_variables_of_templates(switch):
    assert chat().chat_template_kwargs is None
    assert chat(thinking={"type": "adaptive"}).chat_template_kwargs is None
    assert chat(thinking=ENABLED).chat_template_kwargs[switch] is True
    assert chat(thinking={"type": "disabled"}).chat_template_kwargs[switch] is False
    own = {switch: "mine"}
    assert chat(thinking=ENABLED, chat_template_kwargs=own).chat_template_kwargs[switch] == "mine"


@pytest.mark.parametrize(
    ("fields", "limits", "budget"),
    [
        ({"thinking": ENABLED}, True, 64),
        ({"thinking": ENABLED}, False, None),
        ({"thinking": ENABLED, "thinking_token_budget": 5}, True, 5),
        ({"thinking_token_budget": 5}, True, 5),
        ({"thinking": {"type": "disabled"}}, True, None),
    ],
)
def test_a_budget_limits_the_reasoning_where_the_engine_can(fields, limits, budget):
    assert chat(**fields, limits_thinking=limits).thinking_token_budget == budget


@pytest.mark.parametrize(
    ("display", "shows"), [(None, True), ("summarized", True), ("omitted", False)]
)
def test_the_reasoning_is_shown_unless_it_is_omitted(display, shows):
    assert of(thinking=ENABLED | {"display": display}).shows_thinking is shows
    assert of().shows_thinking


@pytest.mark.parametrize(
    ("thinking", "param"),
    [
        ({"type": "on"}, "thinking.type"),
        ({"type": "between_tools"}, "thinking.type"),
        ({"type": "enabled"}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": 0}, "thinking.budget_tokens"),
        ({"type": "disabled", "budget_tokens": 5}, "thinking.budget_tokens"),
        (ENABLED | {"display": "all"}, "thinking.display"),
    ],
)
def test_reasoning_that_cannot_be_asked_for_is_refused(thinking, param):
    with pytest.raises(InvalidRequestError) as caught:
        of(thinking=thinking)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("thinking", "said"),
    [
        ({"type": "between_tools"}, "send disabled"),
        (ENABLED | {"display": "updates"}, "send summarized"),
    ],
)
def test_reasoning_of_newer_models_is_refused_with_the_way_out(thinking, said):
    with pytest.raises(InvalidRequestError, match=f"is not supported: .*{said}"):
        of(thinking=thinking)


def test_thinking_is_bound_to_no_conversation():
    binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert chat(thinking=ENABLED | binding) == chat(thinking=ENABLED)


def test_an_output_format_is_a_constraint_and_an_effort_a_variable():
    schema = {"type": "object"}
    config = {"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    found = chat(output_config=config)
    assert found.reasoning_effort == "high"
    assert found.response_format == {"type": "json_schema", "json_schema": {"schema": schema}}
    assert chat(output_config={}).response_format is None


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"format": {"type": "json_object"}}, "output_config.format.type"),
        ({"format": {}}, "output_config.format.type"),
        ({"format": {"type": "json_schema"}}, "output_config.format.schema"),
        ({"task_budget": {"type": "tokens", "total": 5}}, "output_config.task_budget"),
        ({"effort": "weird"}, "output_config.effort"),
    ],
)
def test_an_output_that_does_not_exist_is_refused(config, param):
    with pytest.raises(InvalidRequestError) as caught:
        of(output_config=config)
    assert caught.value.param == param


def test_a_field_of_a_format_that_does_not_exist_is_refused():
    given = {"type": "json_schema", "schema": {}, "strict": True}
    with pytest.raises(UnknownFieldError, match=r"output_config\.format\.strict"):
        of(output_config={"format": given})


def test_tools_and_their_choice_are_those_of_a_chat():
    choice = {"type": "any", "disable_parallel_tool_use": True}
    found = of(tools=[TOOL | {"eager_input_streaming": False}], tool_choice=choice)
    assert [tool["function"]["name"] for tool in found.chat.tools] == ["f"]
    assert (found.chat.tool_choice, found.chat.parallel_tool_calls) == ("required", False)
    assert found.held_tools == {"f"}
    for eager in ({}, {"eager_input_streaming": None}, {"eager_input_streaming": True}):
        assert of(tools=[TOOL | eager]).held_tools == frozenset()


@pytest.mark.parametrize(
    ("last", "fields", "continues"),
    [
        ("Once", {}, True),
        ([{"type": "text", "text": "Once"}], {}, True),
        ("", {}, False),
        ([CALL], {}, False),
        ("Once", {"add_generation_prompt": True}, False),
        ("Once", {"continue_final_message": False}, False),
    ],
)
def test_a_last_text_of_the_assistant_is_continued(last, fields, continues):
    messages = [*HI, {"role": "assistant", "content": last}]
    assert chat(messages=messages, **fields).continue_final_message is continues
    assert chat().continue_final_message is False


def test_a_count_is_of_the_same_prompt():
    shared = {"system": "s", "tools": [TOOL], "thinking": ENABLED}
    counted, sent = of(CountTokensBody, **shared).chat, chat(**shared)
    for name in ("messages", "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort"):
        assert getattr(counted, name) == getattr(sent, name)
