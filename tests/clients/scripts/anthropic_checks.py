"""Anthropic's client."""

import anthropic
from checks import FUNCTION, MESSAGES, MODEL, PARAMETERS, check, check_city, raises, run

# Version 2 of the client has no argument `temperature`; the field is in the API.
BODY = {
    "model": MODEL, "messages": MESSAGES, "max_tokens": 24, "extra_body": {"temperature": 0}
}  # fmt: skip
TOOL = {"name": FUNCTION["name"], "description": "The weather", "input_schema": PARAMETERS}


def client(url):
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)


def ask(url, **fields):
    return client(url).messages.create(**(BODY | fields))


@check
def messages_whole_and_streamed_are_equal(url):
    whole = ask(url)
    assert whole.type == "message"
    assert whole.role == "assistant"
    assert whole.content[0].text
    with client(url).messages.stream(**BODY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.output_tokens == whole.usage.output_tokens


@check
def events_of_a_stream_have_their_order(url):
    kinds = [event.type for event in ask(url, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert "content_block_start" in kinds
    assert "content_block_delta" in kinds
    assert "content_block_stop" in kinds


@check
def stop_reasons(url):
    assert ask(url, max_tokens=1).stop_reason == "max_tokens"
    stopped = ask(url, stop_sequences=["e", "a", "i", "o"])
    assert stopped.stop_reason == "stop_sequence"
    assert stopped.stop_sequence in ("e", "a", "i", "o")


@check
def tools(url):
    for choice in ({"type": "any"}, {"type": "tool", "name": TOOL["name"]}):
        choice |= {"disable_parallel_tool_use": True}
        whole = ask(url, tools=[TOOL], tool_choice=choice, max_tokens=200)
        assert whole.stop_reason == "tool_use"
        (call,) = [block for block in whole.content if block.type == "tool_use"]
        check_city(call.input)
        fields = {"max_tokens": 200, "tools": [TOOL], "tool_choice": choice}
        with client(url).messages.stream(**(BODY | fields)) as stream:
            final = stream.get_final_message()
        (streamed,) = [block for block in final.content if block.type == "tool_use"]
        assert (streamed.name, streamed.input) == (call.name, call.input)


@check
def the_result_of_a_tool_goes_back(url):
    used = {"type": "tool_use", "id": "toolu_1", "name": TOOL["name"], "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [result]},
    ]
    assert ask(url, messages=turns, tools=[TOOL], system="Be brief").role == "assistant"


@check
def tokens_are_counted(url):
    counted = client(url).messages.count_tokens(model=MODEL, messages=MESSAGES)
    assert counted.input_tokens == ask(url).usage.input_tokens


@check
def errors_have_their_types(url):
    with raises(anthropic.NotFoundError) as raised:
        ask(url, model="nothing")
    assert raised[0].body["error"]["type"] == "not_found_error"
    with raises(anthropic.BadRequestError) as raised:
        ask(url, max_tokens=0)
    assert raised[0].body["error"]["type"] == "invalid_request_error"
    with raises(anthropic.BadRequestError):
        ask(url, extra_body={"temprature": 1})


run("anthropic", "/v1/messages")
