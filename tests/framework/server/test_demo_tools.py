"""The demo model uses tools through the `openai` client: every way to ask for calls, and a loop."""

import json

import pytest
from openai import OpenAI
from server_parts import start_server, stop_servers

from quire.config import Settings
from quire.launch import start_engine

OPTIONS = {"model": "demo", "temperature": 0, "max_tokens": 80}


def function(name, description, **properties):
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


WEATHER = function("get_weather", "The weather in a city", city={"type": "string"})
PEOPLE = function("get_population", "How many people live in a city", city={"type": "string"})
TOOLS = [WEATHER, PEOPLE]
RESULTS = {"get_weather": {"temperature": 12, "sky": "rain"}, "get_population": {"people": 71000}}


@pytest.fixture(scope="module")
def client():
    engine = start_engine(Settings.from_options({"model": "demo", "max_num_seqs": 4}))
    served = start_server(engine.core, engine.async_frontend())
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made
    stop_servers([served])


def ask(client, messages, stream, **fields):
    """Return the message of the assistant and the finish reason, streamed or whole."""
    completions = client.chat.completions
    if not stream:
        choice = completions.create(messages=messages, **OPTIONS | fields).choices[0]
        return choice.message, choice.finish_reason
    with completions.stream(messages=messages, **OPTIONS | fields) as events:
        choice = events.get_final_completion().choices[0]
        return choice.message, choice.finish_reason


def calls_of(message):
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or ()
    ]


def user(text):
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "finish_reason"),
    [
        ({}, "tool_calls"),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, "tool_calls"),
        ({"tool_choice": "required"}, "tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, "stop"),
    ],
)
def test_a_question_gets_its_call(client, stream, fields, finish_reason):
    message, reason = ask(
        client, user("What is the weather in Oslo?"), stream, tools=TOOLS, **fields
    )
    assert calls_of(message) == [("get_weather", {"city": "Oslo"})]
    assert (reason, message.content or "") == (finish_reason, "")


@pytest.mark.parametrize("stream", [False, True])
def test_strict_calls_in_free_text_follow_their_schema(client, stream):
    city = {"type": "string", "enum": ["Bergen", "Oslo"]}
    tool = function("get_weather", "The weather in a city", city=city)
    tool["function"]["strict"] = True
    for town in ("Oslo", "Paris"):
        messages = user(f"What is the weather in {town}?")
        ((name, arguments),) = calls_of(ask(client, messages, stream, tools=[tool])[0])
        assert name == "get_weather"
        assert arguments["city"] in city["enum"]


@pytest.mark.parametrize("stream", [False, True])
def test_two_questions_get_two_calls(client, stream):
    messages = user("What is the weather in Oslo and what is the weather in Paris?")
    calls = calls_of(ask(client, messages, stream, tools=TOOLS)[0])
    assert calls == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Paris"})]
    one = calls_of(ask(client, messages, stream, tools=TOOLS, parallel_tool_calls=False)[0])
    assert one == calls[:1]


def test_without_a_choice_there_is_no_call(client):
    message, _ = ask(
        client, user("What is the weather in Oslo?"), False, tools=TOOLS, tool_choice="none"
    )
    assert message.tool_calls is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_of_several_turns_uses_the_results(client, stream):
    messages, answers = [], []
    for question in ("What is the weather in Oslo?", "What is the weather in Paris?"):
        messages += user(question)
        for _ in range(3):
            message, reason = ask(client, messages, stream, tools=TOOLS)
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            if not message.tool_calls:
                break
            assert reason == "tool_calls"
            messages += [
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "content": json.dumps(RESULTS[call.function.name]),
                }
                for call in message.tool_calls
            ]
        answers.append(message.content)
    assert all("12" in answer and "rain" in answer for answer in answers)
