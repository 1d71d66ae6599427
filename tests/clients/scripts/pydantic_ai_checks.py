"""Pydantic AI, by chat completions, the Responses API and Anthropic's."""

import asyncio

from checks import MODEL, QUESTION, check, check_of, raises, run
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS = {"temperature": 0, "max_tokens": 24}
LONG = SETTINGS | {"max_tokens": 200}


class Place(BaseModel):
    """A place."""

    is_city: bool


def chat(url, name=MODEL):
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def check_stream(model):
    agent = Agent(model, model_settings=SETTINGS)

    async def ask():
        whole = await agent.run(QUESTION)
        async with agent.run_stream(QUESTION) as streamed:
            text = "".join([piece async for piece in streamed.stream_text(delta=True)])
            used = streamed.usage
        return whole, text, used

    whole, text, used = asyncio.run(ask())
    counted = whole.usage
    assert text == whole.output
    assert text
    assert (used.input_tokens, used.output_tokens) == (counted.input_tokens, counted.output_tokens)
    assert counted.output_tokens == 24


def output(model, kind):
    return asyncio.run(Agent(model, output_type=kind, model_settings=LONG).run(QUESTION)).output


@check
def chats_whole_and_streamed_are_equal(url):
    check_stream(chat(url))


@check
def structured_output_by_tools(url):
    assert isinstance(output(chat(url), ToolOutput(Place)), Place)


@check
def structured_output_by_schemas(url):
    assert isinstance(output(chat(url), NativeOutput(Place)), Place)


@check
def errors_have_their_types(url):
    with raises(ModelHTTPError) as raised:
        asyncio.run(Agent(chat(url, "nothing")).run(QUESTION))
    assert raised[0].status_code == 404


@check_of("/v1/responses")
def responses_whole_and_streamed_are_equal(url):
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    check_stream(OpenAIResponsesModel(MODEL, provider=provider))


@check_of("/v1/messages")
def messages_whole_and_streamed_are_equal(url):
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
    check_stream(AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client)))


run("pydantic-ai-slim")
