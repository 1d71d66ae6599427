"""LangChain's ChatOpenAI, by chat completions and by the Responses API."""

import openai
from checks import (
    MODEL,
    PARAMETERS,
    QUESTION,
    SCHEMA,
    check,
    check_city,
    check_of,
    check_place,
    raises,
    run,
)
from langchain_openai import ChatOpenAI, OpenAI

SCHEMA = SCHEMA | {"title": "place", "description": "A place"}
WEATHER = PARAMETERS | {"title": "get_weather", "description": "The weather in a city"}


def chat(url, **options):
    given = {"model": MODEL, "temperature": 0, "max_tokens": 24, "max_retries": 0} | options
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, **given)


def check_stream(model):
    whole = model.invoke(QUESTION)
    total = None
    for chunk in model.stream(QUESTION):
        total = chunk if total is None else total + chunk
    assert total.text == whole.text
    assert whole.text
    assert total.usage_metadata == whole.usage_metadata
    assert whole.usage_metadata["output_tokens"] == 24


@check
def chats_whole_and_streamed_are_equal(url):
    check_stream(chat(url, stream_usage=True))
    assert chat(url).invoke(QUESTION).response_metadata["finish_reason"] == "length"


@check
def tool_calls(url):
    bound = chat(url, max_tokens=200).bind_tools(
        [WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = bound.invoke(QUESTION).tool_calls
    assert call["name"] == "get_weather"
    check_city(call["args"])
    total = None
    for chunk in bound.stream(QUESTION):
        total = chunk if total is None else total + chunk
    assert [each["args"] for each in total.tool_calls] == [call["args"]]


@check
def structured_output(url):
    import json

    for method in ("json_schema", "function_calling"):
        made = chat(url, max_tokens=200).with_structured_output(SCHEMA, method=method)
        check_place(json.dumps(made.invoke(QUESTION)))


@check
def text_completions(url):
    model = OpenAI(base_url=f"{url}/v1", api_key="none", model=MODEL, max_tokens=8, temperature=0)
    assert model.invoke("One, two,") == "".join(model.stream("One, two,"))


@check
def errors_have_their_types(url):
    with raises(openai.BadRequestError):
        chat(url, temperature=-1).invoke(QUESTION)
    with raises(openai.NotFoundError):
        chat(url, model="nothing").invoke(QUESTION)


@check_of("/v1/responses")
def responses_whole_and_streamed_are_equal(url):
    check_stream(chat(url, use_responses_api=True))


@check_of("/v1/responses")
def responses_with_tools(url):
    bound = chat(url, max_tokens=200, use_responses_api=True).bind_tools(
        [WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = bound.invoke(QUESTION).tool_calls
    check_city(call["args"])


run("langchain-openai")
