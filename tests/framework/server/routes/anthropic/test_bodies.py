"""Each field that Anthropic's client or vLLM sends is honoured, accepted or refused by name."""

import json
import re
from typing import get_args, get_type_hints

import msgspec
import pytest
from anthropic.types import (
    content_block_param,
    message_count_tokens_params,
    message_create_params,
    output_config_param,
    text_block_param,
    thinking_block_param,
    thinking_config_param,
    tool_choice_param,
    tool_param,
    tool_result_block_param,
    tool_use_block_param,
)
from anthropic.types.beta import (
    BetaThinkingConfigParam,
    BetaToolChoiceParam,
    BetaToolParam,
    beta_content_block_param,
    beta_output_config_param,
)
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_create

from quire.errors import InvalidRequestError, UnknownFieldError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.anthropic.bodies import (
    ACCEPTED,
    REFUSED_OF_MESSAGES,
    CountTokensBody,
    MessagesBody,
    OutputConfig,
    ThinkingConfig,
    ToolChoice,
)
from quire.server.routes.anthropic.sent_blocks import BLOCKS, REFUSED_BLOCKS
from quire.server.routes.anthropic.tools import ClientTool
from quire.server.wire.bodies import decode
from quire.server.wire.fields import sampler_values
from quire.server.wire.protocol import ChatBody

REQUIRED = {"messages": [], "max_tokens": 1}
OLDER = (
    "temperature",
    "top_p",
    "top_k",
    "stream",
)  # of Anthropic's API; the newest client has none
VLLM = (
    "model", "messages", "max_tokens", "metadata", "output_config", "stop_sequences", "stream",
    "system", "temperature", "tool_choice", "tools", "top_k", "top_p", "kv_transfer_params",
    "chat_template_kwargs",
)  # fmt: skip


def sort(fields, kind=MessagesBody, of_samplers=(), unknown=None):
    required = REQUIRED if kind is MessagesBody else {"messages": []}
    body = decode(msgspec.json.encode(required | fields), kind)
    table = REFUSED_OF_MESSAGES
    return sampler_values(body, of_samplers, {}, unknown or UnknownFields(), table)


def published(*types):
    return sorted({name for each in types for name in get_type_hints(each)})


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            *published(
                message_create_params.MessageCreateParamsBase, beta_create.MessageCreateParamsBase
            ),
            *OLDER,
            *VLLM,
        }
    ),
)
def test_each_field_of_a_message_has_one_class(name):
    declared = set(MessagesBody.__struct_fields__)
    classes = (declared - ACCEPTED, ACCEPTED & declared, REFUSED_OF_MESSAGES.keys() - declared)
    assert sum(name in each for each in classes) == 1


@pytest.mark.parametrize(
    "name",
    published(
        message_count_tokens_params.MessageCountTokensParams, beta_count.MessageCountTokensParams
    ),
)
def test_each_field_of_a_count_is_known(name):
    declared = set(CountTokensBody.__struct_fields__)
    assert (name in declared) != (name in REFUSED_OF_MESSAGES.keys() - declared)


def test_a_count_has_the_fields_of_a_message_that_its_prompt_depends_on():
    assert set(CountTokensBody.__struct_fields__) <= set(MessagesBody.__struct_fields__)


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        (ToolChoice, get_args(tool_choice_param.ToolChoiceParam)),
        (ThinkingConfig, get_args(thinking_config_param.ThinkingConfigParam)),
        (OutputConfig, [output_config_param.OutputConfigParam]),
        (OutputConfig, [beta_output_config_param.BetaOutputConfigParam]),
        (ClientTool, [tool_param.ToolParam]),
        (ToolChoice, get_args(BetaToolChoiceParam)),
        (ThinkingConfig, get_args(BetaThinkingConfigParam)),
        (ClientTool, [BetaToolParam]),
    ],
)
def test_each_field_of_an_object_is_known(kind, types):
    assert set(published(*types)) <= set(kind.__struct_fields__)


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("text", text_block_param.TextBlockParam),
        ("thinking", thinking_block_param.ThinkingBlockParam),
        ("tool_use", tool_use_block_param.ToolUseBlockParam),
        ("tool_result", tool_result_block_param.ToolResultBlockParam),
    ],
)
def test_each_field_of_a_block_is_known(kind, block):
    assert set(published(block)) - {"type"} <= BLOCKS[kind]


def test_each_type_of_a_block_is_known():
    for union in (
        content_block_param.ContentBlockParam,
        beta_content_block_param.BetaContentBlockParam,
    ):
        for block in get_args(union):
            if not isinstance(block, type):
                continue  # the union of the blocks of responses, which are sent back
            (kind,) = get_args(get_type_hints(block)["type"])
            assert (kind in BLOCKS) != (kind in REFUSED_BLOCKS), kind


def test_each_field_of_a_chat_has_its_like_or_is_refused_by_name():
    declared = {*MessagesBody.__struct_fields__, *REFUSED_OF_MESSAGES}
    no_effect = {name for name, _ in _described(ChatBody) if name not in declared}
    assert set(ChatBody.__struct_fields__) - declared == no_effect


def _described(kind):
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return [
        (name, schema["description"])
        for name, schema in properties.items()
        if schema.get("description", "").startswith("No effect: ")
    ]


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_what_has_no_effect_is_accepted_and_described(name):
    for value in ("x", {"type": "ephemeral"}, None):
        assert sort({name: value}) == {}
    assert name in dict(_described(MessagesBody))


@pytest.mark.parametrize("name", sorted(REFUSED_OF_MESSAGES.keys() - {"echo"}))
def test_what_cannot_be_done_is_refused_by_name_and_may_be_null(name):
    assert sort({name: None}) == {}
    for neutral in REFUSED_OF_MESSAGES[name].neutral:
        assert sort({name: neutral}) == {}
    with pytest.raises(InvalidRequestError, match=f"{name} is not supported; ") as caught:
        sort({name: "some value"})
    assert caught.value.param == name


def test_a_client_that_keeps_all_of_its_thoughts_asks_for_nothing():
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert sort({"context_management": keeps}) == {}
    with pytest.raises(InvalidRequestError, match="remove from messages"):
        sort({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}})


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"max_token": 1}, "max_token", "did you mean 'max_tokens'?"),
        ({"stop_sequence": "x"}, "stop_sequence", "did you mean 'stop_sequences'?"),
        ({"warmthh": 1}, "warmthh", "did you mean 'warmth'?"),
        ({"mystery": 0}, "mystery", "leave it out"),
        (
            {"thinking": {"type": "enabled", "budget_token": 5}},
            "thinking.budget_token",
            "did you mean 'budget_tokens'?",
        ),
        ({"tool_choice": {"type": "auto", "x": 1}}, "tool_choice.x", "disable_parallel_tool_use"),
        ({"output_config": {"formats": {}}}, "output_config.formats", "did you mean 'format'?"),
    ],
)
def test_a_field_that_does_not_exist_is_refused_with_its_path(fields, param, said):
    with pytest.raises(UnknownFieldError, match=re.escape(said)) as caught:
        sort(fields, of_samplers={"warmth"})
    assert caught.value.param == param
    assert sort(fields, of_samplers={"warmth"}, unknown=UnknownFields(is_lenient=True)) == {}


def test_a_samplers_own_field_goes_to_it():
    assert sort({"warmth": 1.5}, of_samplers={"warmth"}) == {"warmth": 1.5}


@pytest.mark.parametrize("missing", ["messages", "max_tokens"])
def test_what_is_required_is_named(missing):
    body = {name: value for name, value in REQUIRED.items() if name != missing}
    with pytest.raises(InvalidRequestError, match=missing):
        decode(json.dumps(body).encode(), MessagesBody)
