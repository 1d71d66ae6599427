"""OpenAI's client, which checks the types of all responses: 2.x and 3.x."""

import json

import openai
from checks import (
    FUNCTION,
    MESSAGES,
    MODEL,
    QUESTION,
    SCHEMA,
    TOOL,
    check,
    check_city,
    check_of,
    check_place,
    raises,
    run,
)

FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
CHATS = (
    {}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}, {"stop": ["."]}, {"max_tokens": 1},
    {"tools": [TOOL]}, {"store": True, "user": "u", "metadata": {"a": "b"}, "service_tier": "auto"},
    {"messages": [{"role": "developer", "content": "Be brief"}, *MESSAGES]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]},
)  # fmt: skip
COMPLETIONS = (
    {}, {"n": 2}, {"logprobs": 2}, {"echo": True}, {"prompt": ["One,", "Red,"]},
    {"prompt": [5, 6]}, {"prompt": [[5, 6], [7]]}, {"stop": "e"},
)  # fmt: skip


def client(url, *, is_strict=True):
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60,
        _strict_response_validation=is_strict,
    )  # fmt: skip


def chat(url, **fields):
    body = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 24} | fields
    return client(url).chat.completions.create(**body)


def complete(url, **fields):
    """Complete a text; the types of a stream's events are not checked.

    An event that is not the last of its choice has a null `finish_reason`, as OpenAI's own have,
    and the published type does not allow it.
    """
    body = {"model": MODEL, "prompt": "One, two,", "temperature": 0, "max_tokens": 8} | fields
    return client(url, is_strict=not body.get("stream")).completions.create(**body)


def parts(chunks):
    """Return text and finish reason of each choice of a stream, and its usage."""
    texts, reasons, usage = {}, {}, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + (piece or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return texts, reasons, usage


USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@check
def models(url):
    listed = client(url).models.list().data
    assert [each.id for each in listed] == [MODEL]
    assert client(url).models.retrieve(MODEL) == listed[0]


@check
def a_chat_and_its_stream_are_equal(url):
    for fields in CHATS:
        whole = chat(url, **fields)
        texts, reasons, usage = parts(chat(url, **fields, **USAGE))
        assert texts == {c.index: c.message.content or "" for c in whole.choices}, fields
        assert reasons == {c.index: c.finish_reason for c in whole.choices}, fields
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [getattr(usage, c) for c in counts] == [getattr(whole.usage, c) for c in counts]
        assert whole.model == MODEL


@check
def a_completion_and_its_stream_are_equal(url):
    for fields in COMPLETIONS:
        whole = complete(url, **fields)
        texts, reasons, usage = parts(complete(url, **fields, **USAGE))
        assert texts == {c.index: c.text for c in whole.choices}, fields
        assert reasons == {c.index: c.finish_reason for c in whole.choices}, fields
        assert usage.total_tokens == whole.usage.total_tokens


@check
def finish_reasons(url):
    assert chat(url, max_tokens=1).choices[0].finish_reason == "length"
    assert chat(url, stop=["e", "a", "i", "o"]).choices[0].finish_reason == "stop"


@check
def log_probabilities_have_the_tokens_of_the_text(url):
    choice = chat(url, logprobs=True, top_logprobs=3).choices[0]
    rows = choice.logprobs.content
    assert b"".join(bytes(row.bytes) for row in rows).decode() == choice.message.content
    assert all(len(row.top_logprobs) == 3 and row.logprob <= 0 for row in rows)


@check
def tool_calls(url):
    named = {"type": "function", "function": {"name": FUNCTION["name"]}}
    for choice, end in (("required", "tool_calls"), (named, "stop")):
        fields = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 200}
        whole = chat(url, **fields, parallel_tool_calls=False).choices[0]
        assert whole.finish_reason == end
        (call,) = whole.message.tool_calls
        check_city(call.function.arguments)
        streamed = {"name": "", "arguments": ""}
        for chunk in chat(url, **fields, parallel_tool_calls=False, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or ():
                streamed["name"] += delta.function.name or ""
                streamed["arguments"] += delta.function.arguments or ""
        assert streamed == {"name": call.function.name, "arguments": call.function.arguments}


@check
def the_result_of_a_tool_goes_back(url):
    call = {"id": "call_1", "type": "function",
            "function": {"name": FUNCTION["name"], "arguments": '{"city": "Oslo"}'}}  # fmt: skip
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    assert chat(url, messages=turns, tools=[TOOL]).choices[0].message.role == "assistant"


@check
def structured_output(url):
    whole = chat(url, response_format=FORMAT, max_tokens=200).choices[0]
    assert whole.finish_reason == "stop"
    check_place(whole.message.content)
    texts, _, _ = parts(chat(url, response_format=FORMAT, max_tokens=200, stream=True))
    assert texts == {0: whole.message.content}
    loose = chat(url, response_format={"type": "json_object"}, max_tokens=200).choices[0]
    if loose.finish_reason == "stop":
        assert isinstance(json.loads(loose.message.content), dict)


@check
def parsed_output(url):
    from pydantic import BaseModel

    class Place(BaseModel):
        is_city: bool

    made = client(url).chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Place, max_tokens=100
    )
    assert isinstance(made.choices[0].message.parsed, Place)


@check
def the_stream_helper_accumulates(url):
    with client(url).chat.completions.stream(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=200, stop=["."]
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    whole = chat(url, max_tokens=200, stop=["."])
    assert final.choices[0].message.content == whole.choices[0].message.content


@check
def a_client_may_be_asynchronous(url):
    import asyncio

    async def ask():
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", _strict_response_validation=True
        ) as made:
            body = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
            whole = await made.chat.completions.create(**body)
            chunks = await made.chat.completions.create(**body, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in chunks])
        assert text == whole.choices[0].message.content

    asyncio.run(ask())


@check
def errors_have_their_types(url):
    cases = (
        ({"n": 0}, openai.BadRequestError),
        ({"temperature": "hot"}, openai.BadRequestError),
        ({"model": "nothing"}, openai.NotFoundError),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "x " * 20000}]}, openai.BadRequestError),
    )
    for fields, kind in cases:
        for stream in (False, True):
            with raises(kind) as raised:
                chat(url, **fields, stream=stream)
            error = raised[0]
            assert all((error.param, error.code, error.type, error.request_id)), fields
    with raises(openai.NotFoundError):
        client(url).models.retrieve("nothing")


@check
def a_time_limit_is_an_error_that_is_not_retried(url):
    body = {"max_tokens": 400, "extra_body": {"timeout_s": 0.01, "ignore_eos": True}}
    with raises(openai.InternalServerError) as raised:
        chat(url, **body)
    assert raised[0].status_code == 504


@check_of("/v1/responses")
def responses_whole_and_streamed_are_equal(url):
    body = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    whole = client(url).responses.create(**body)
    assert whole.output_text == chat(url).choices[0].message.content
    text, last = "", None
    for event in client(url).responses.create(**body, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        last = event
    assert text == whole.output_text
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.usage == whole.usage
    assert last.response.status == whole.status


@check_of("/v1/responses")
def responses_are_stored_continued_and_deleted(url):
    body = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 8}
    first = client(url).responses.create(**body, store=True)
    assert client(url).responses.retrieve(first.id).output_text == first.output_text
    then = client(url).responses.create(**body, previous_response_id=first.id)
    assert then.previous_response_id == first.id
    assert then.usage.input_tokens > first.usage.input_tokens
    client(url).responses.delete(first.id)
    with raises(openai.NotFoundError):
        client(url).responses.retrieve(first.id)


@check_of("/v1/responses")
def responses_call_functions_and_follow_schemas(url):
    body = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 200}
    tool = {"type": "function", "strict": True, **FUNCTION}
    called = client(url).responses.create(**body, tools=[tool], tool_choice="required")
    calls = [item for item in called.output if item.type == "function_call"]
    assert calls
    check_city(calls[0].arguments)
    text = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
    check_place(client(url).responses.create(**body, text=text).output_text)


@check_of("/v1/responses")
def responses_raise_errors_of_their_types(url):
    with raises(openai.NotFoundError):
        client(url).responses.create(model="nothing", input=QUESTION)
    with raises(openai.BadRequestError):
        client(url).responses.create(model=MODEL, input=QUESTION, temperature=-1)
    with raises(openai.NotFoundError):
        client(url).responses.retrieve("resp_nothing")


run("openai")
