"""LiteLLM, which calls quire as an OpenAI-compatible server, or by the APIs of others."""

import litellm
from checks import (
    MESSAGES,
    MODEL,
    SCHEMA,
    TOOL,
    check,
    check_city,
    check_of,
    check_place,
    raises,
    run,
)

litellm.telemetry = False
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}


def ask(url, provider="hosted_vllm", base="/v1", **fields):
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 24} | fields
    name = f"{provider}/{body.pop('model', MODEL)}"
    return litellm.completion(
        model=name, api_base=url + base, api_key="none", num_retries=0, timeout=60, **body
    )


def check_stream(url, **how):
    whole = ask(url, **how)
    chunks = list(ask(url, stream=True, stream_options={"include_usage": True}, **how))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert text
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason
    assert built.usage.completion_tokens == whole.usage.completion_tokens
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


@check
def chats_whole_and_streamed_are_equal(url):
    check_stream(url)


@check
def the_provider_openai_works(url):
    check_stream(url, provider="openai")


@check
def tool_calls(url):
    fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    whole = ask(url, **fields, parallel_tool_calls=False).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    check_city(call.function.arguments)


@check
def structured_output(url):
    made = ask(url, response_format=FORMAT, max_tokens=200).choices[0]
    assert made.finish_reason == "stop"
    check_place(made.message.content)


@check
def text_completions(url):
    made = litellm.text_completion(
        model=f"hosted_vllm/{MODEL}", prompt="One, two,", api_base=f"{url}/v1", api_key="none",
        max_tokens=8, temperature=0,
    )  # fmt: skip
    assert made.choices[0].text
    assert made.usage.completion_tokens == 8


@check
def errors_have_their_types(url):
    with raises(litellm.BadRequestError):
        ask(url, n=0)
    with raises(litellm.NotFoundError):
        ask(url, model="nothing")


@check_of("/v1/messages")
def messages_by_the_anthropic_provider(url):
    check_stream(url, provider="anthropic", base="")


@check_of("/api/chat")
def chats_by_the_ollama_provider(url):
    check_stream(url, provider="ollama_chat", base="")


@check_of("/v1/responses")
def responses(url):
    made = litellm.responses(
        model=f"openai/{MODEL}", input=MESSAGES[0]["content"], api_base=f"{url}/v1",
        api_key="none", temperature=0, max_output_tokens=24,
    )  # fmt: skip
    text = "".join(c.text for item in made.output if item.type == "message" for c in item.content)
    assert text == ask(url).choices[0].message.content


run("litellm")
