"""What OpenAI's client sees of /v1/responses and of stored responses."""

import json
import time

import openai
import pytest
from openai.types.responses import ResponseOutputText
from pydantic import BaseModel

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": False,
}
CLOCK = {"type": "function", "name": "get_time", "parameters": {"type": "object"}, "strict": None}


def ask(client, text="Who are you?", **fields):
    return client.responses.create(model="demo", input=text, **fields)


def prompt_of(served, index=-1):
    ids = served.core.requests[index].token_ids
    return served.frontend.tokenizer.decode(ids, skip_special_tokens=False)


def test_a_text_gets_a_response(client, served):
    response = ask(client, max_output_tokens=50)
    assert response.output_text == "I am a script."
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (response.status, response.error, response.incomplete_details) == (
        "completed", None, None,
    )  # fmt: skip
    assert (response.model, response.object, response.max_output_tokens) == ("demo", "response", 50)
    assert response.id.startswith("resp_")
    assert message.id.startswith("msg_")
    request = served.core.requests[0]
    assert request.max_tokens == 50
    assert prompt_of(served).endswith("Who are you?<|im_end|>\n<|im_start|>assistant\n")
    num_tokens = len(served.frontend.tokenizer.encode("I am a script.")) + 1  # and the end
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(request.token_ids), num_tokens)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_a_stream_has_openais_events_in_order(client):
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 2
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type.endswith("text.delta")) == "I am a script."
    assert events[-1].response.output_text == "I am a script."
    assert events[0].response.output == []
    assert events[0].response.status == "in_progress"
    assert len({e.response.id for e in events if hasattr(e, "response")}) == 1


def test_the_clients_own_accumulation_of_a_stream_is_the_final_response(client, served):
    served.texts.by_prompt = {"Go": '<t>hm</t>Sure: [[get_weather {"city": "a"}]][[get_time {}]]'}
    with client.responses.stream(model="demo", input="Go", tools=[WEATHER, CLOCK]) as stream:
        list(stream)
        response = stream.get_final_response()
    reasoning, message, *calls = response.output
    assert [part.text for part in reasoning.content] == ["hm"]
    assert message.content[0].text == "Sure: "
    assert [(c.name, json.loads(c.arguments)) for c in calls] == [
        ("get_weather", {"city": "a"}), ("get_time", {}),
    ]  # fmt: skip
    assert response.usage.output_tokens_details.reasoning_tokens > 0
