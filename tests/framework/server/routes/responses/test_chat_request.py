"""A request for a response as one for a chat: what is renamed, and how errors are named."""

import pytest

from quire.errors import InvalidRequestError, PromptTooLongError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.chat_request import chat_body, errors_as_sent
from quire.server.wire.protocol import ChatBody
from quire.server.wire.responses import ReasoningOptions, ResponseBody, TextOptions

STRICT = UnknownFields()
USER = {"role": "user", "content": "Hi"}


def convert(**fields):
    return chat_body(ResponseBody(**fields), [], [USER], STRICT)


def test_fields_of_the_same_name_and_meaning_are_passed_on():
    same = {"temperature": 0.5, "top_k": 3, "seed": 1, "stop": ["x"], "priority": 2}
    same |= {"timeout_s": 3.0, "cache_salt": "s", "chat_template_kwargs": {"a": 1}}
    found = convert(**same)
    assert {name: getattr(found, name) for name in same} == same
    assert found.messages == [USER]


def test_other_fields_are_renamed():
    schema = {"type": "json_schema", "name": "n", "schema": {}, "strict": True, "description": None}
    found = convert(
        max_output_tokens=5,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        text=TextOptions(format=schema),
        reasoning=ReasoningOptions(effort="low"),
        truncation="auto",
    )
    assert (found.max_completion_tokens, found.logprobs, found.top_logprobs) == (5, True, 2)
    assert found.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {}, "strict": True},
    }
    assert (found.reasoning_effort, found.truncate_prompt_tokens) == ("low", -1)


def test_a_request_without_options_is_a_chat_without_options():
    assert convert() == ChatBody(messages=[USER])
    assert convert(text=TextOptions(format={"type": "text"})).response_format == {"type": "text"}


@pytest.mark.parametrize(
    ("message", "param", "sent"),
    [
        ("max_completion_tokens must be 1", "max_completion_tokens", "max_output_tokens"),
        ("max_tokens is too large", "max_tokens", "max_output_tokens"),
        ("min_tokens (3) is larger than max_tokens (2)", "min_tokens", "min_tokens"),
        ("messages must be a list", "messages", "input"),
        ("x", "logprobs", "top_logprobs"),
        ("response_format is odd", "response_format", "text.format"),
        ("no schema", "response_format.json_schema.schema", "text.format.schema"),
        ("x", "tools[3].function.name", "tools[3].name"),
        ("x", "tool_choice.allowed_tools.mode", "tool_choice.mode"),
        ("too long", "prompt", "input"),
        ("x", "min_tokens", "min_tokens"),
        ("x", None, None),
    ],
)
def test_errors_name_fields_as_they_were_sent(message, param, sent):
    with pytest.raises(InvalidRequestError) as failed, errors_as_sent():
        raise InvalidRequestError(message, param=param)
    assert failed.value.param == sent
    if param is not None and message.startswith(param):
        assert str(failed.value).startswith(sent)
    assert "max_tokens" not in str(failed.value)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("no model or adapter 'messages' here", "model"),
        ("tools[0].name must be short, got 'my messages'", "tools[0].name"),
        ("the conversation has 95000 messages", "messages"),
        ("no tool 'max_tokens' here", "tool_choice"),
        ("messages were lost", None),
    ],
)
def test_what_a_message_quotes_stays(message, param):
    with pytest.raises(InvalidRequestError) as failed, errors_as_sent():
        raise InvalidRequestError(message, param=param)
    assert str(failed.value) == message


def test_the_kind_of_an_error_stays():
    with pytest.raises(PromptTooLongError), errors_as_sent():
        raise PromptTooLongError("too long", param="messages")
