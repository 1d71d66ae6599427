"""Anthropic's own client works unchanged, and its types accept every response."""

import asyncio
import json

import anthropic
import httpx
import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent

from quire.errors import CapacityError
from quire.messages import ErrorReport

HI = [{"role": "user", "content": "Hi"}]
TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
REPLY = '<t>hm</t>Well. [[add {"a": 1}]]'
OPTIONS = {"api_key": "none", "max_retries": 0, "timeout": 20, "_strict_response_validation": True}
EVENT = pydantic.TypeAdapter(RawMessageStreamEvent)


@pytest.fixture
def client(served):
    with Anthropic(base_url=served.url, **OPTIONS) as made:
        yield made


def create(client, **fields):
    return client.messages.create(**{"model": "demo", "max_tokens": 100, "messages": HI} | fields)


def test_a_message_is_created(client):
    message = create(client, system="Be kind.", extra_body={"temperature": 0.5, "top_k": 3})
    assert [block.text for block in message.content] == ["I am a script."]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 11)
    assert message.id.startswith("msg_")
    assert message._request_id


def test_the_helper_for_streams_gathers_the_same_message(client, served):
    served.texts.by_prompt = {"Hi": REPLY}
    whole = create(client, tools=[TOOL])
    fields = {"model": "demo", "max_tokens": 100, "messages": HI, "tools": [TOOL]}
    with client.messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert {"text", "thinking", "input_json", "signature", "message_stop"} <= set(kinds)
    ids = {"id", "content"}
    assert final.model_dump(exclude=ids) == whole.model_dump(exclude=ids)
    blocks = [[block.model_dump(exclude={"id"}) for block in m.content] for m in (final, whole)]
    assert blocks[0] == blocks[1]


def test_a_text_stream_has_the_text(client):
    fields = {"model": "demo", "max_tokens": 100, "messages": HI}
    with client.messages.stream(**fields) as stream:
        assert "".join(stream.text_stream) == "I am a script."


def test_a_tool_is_called_and_its_result_is_answered(client, served):
    served.texts.by_prompt = {"Hi": REPLY, "<tool_response>\n3": "It is 3."}
    first = create(client, tools=[TOOL], tool_choice={"type": "auto"})
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("add", {"a": 1})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
    messages = [
        *HI,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = create(client, tools=[TOOL], messages=messages)
    assert [block.text for block in second.content] == ["It is 3."]


def test_tokens_are_counted(client):
    counted = client.messages.count_tokens(model="demo", messages=HI, tools=[TOOL])
    assert counted.input_tokens == create(client, tools=[TOOL]).usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "error", "kind"),
    [
        ({"model": "ghost"}, anthropic.NotFoundError, "not_found_error"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
        ({"extra_body": {"mystery": 1}}, anthropic.BadRequestError, "invalid_request_error"),
    ],
)
def test_errors_are_of_the_clients_classes(client, fields, error, kind):
    with pytest.raises(error) as caught:
        create(client, **fields)
    assert (caught.value.type, caught.value.request_id is not None) == (kind, True)
    assert caught.value.error_code


@pytest.mark.parametrize("header", ["X-Api-Key", "Authorization"])
def test_a_key_is_sent_as_older_and_newer_clients_do(serve, header):
    served = serve(api_key=("sk-1",))
    value = "sk-1" if header == "X-Api-Key" else "Bearer sk-1"
    omitted = {"Authorization": anthropic.Omit()} if header == "X-Api-Key" else {}
    headers = omitted | {header: value}
    with Anthropic(base_url=served.url, **OPTIONS, default_headers=headers) as client:
        assert create(client).content
    with (
        Anthropic(base_url=served.url, **OPTIONS | {"api_key": "sk-2"}) as client,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        create(client)
    assert caught.value.type == "authentication_error"


def test_an_overload_is_tried_again(served):
    served.core.max_queued = 0
    served.core.max_num_seqs = 0
    with (
        Anthropic(base_url=served.url, **OPTIONS) as client,
        pytest.raises(anthropic.InternalServerError) as caught,
    ):
        create(client)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
    assert client._should_retry(caught.value.response)
    assert client._parse_retry_after_header(caught.value.response.headers) > 0


def test_an_error_within_a_stream_is_raised(client, served):
    served.texts.by_prompt = {"Hi": ("I am", ErrorReport(CapacityError.code, "the cache is full"))}
    with pytest.raises(anthropic.APIStatusError, match="the cache is full"):
        for _ in create(client, stream=True):
            pass


def test_the_asynchronous_client_works(served):
    async def main():
        async with AsyncAnthropic(base_url=served.url, **OPTIONS) as client:
            fields = {"model": "demo", "max_tokens": 100, "messages": HI}
            async with client.messages.stream(**fields) as stream:
                return await stream.get_final_text()

    assert asyncio.run(main()) == "I am a script."


@pytest.mark.parametrize("reply", ["I am a script.", REPLY, "[[add {", "<t>hm"])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 2}, {"stop_sequences": ["a"]}])
def test_responses_follow_the_published_schema(served, reply, fields):
    served.texts.by_prompt = {"Hi": reply}
    body = {"messages": HI, "max_tokens": 100, "tools": [TOOL]} | fields
    url = f"{served.url}/v1/messages"
    whole = httpx.post(url, json=body, timeout=20).text
    Message.model_validate_json(whole, strict=True)
    stream = httpx.post(url, json=body | {"stream": True}, timeout=20).text
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    for line in lines:
        EVENT.validate_json(line, strict=True)
    assert json.loads(lines[-1]) == {"type": "message_stop"}
