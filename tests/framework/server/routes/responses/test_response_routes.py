"""What OpenAI's client sees of /v1/responses and of stored responses."""

import json

import httpx
import openai
import pytest
from pydantic import BaseModel

from quire.messages import ErrorReport

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


def ask(client, question="Who are you?", **fields):
    return client.responses.create(model="demo", input=question, **fields)


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


REPLIES = [
    "plain words",
    'Ünïcode, 日本語, 👩‍👩‍👧‍👦 and 🇩🇪 flags \\ " \n\t end',
    "<t>let me think</t>the answer",
    "<t>only thought",
    '[[get_weather {"city": "Köln 🌧"}]]',
    'Sure: [[get_weather {"city": "a"}]][[get_time {}]] done',
    '<t>hm</t>text [[get_weather {"city": "b"}]]',
    '[[get_weather {"city": "never ends',
    '<t>hm</t>x [[get_weather {"city": "never',
    "a [ bracket",
    "",
]


def plain(response):
    """Return a response without ids and times, which differ between two requests."""
    dumped = response.to_dict()
    for name in ("id", "created_at", "completed_at"):
        del dumped[name]
    for item in dumped["output"]:
        del item["id"]
        item.pop("call_id", None)
    return dumped


def without_parsed(items):
    """Return items without what the client itself adds to them."""
    found = [item.to_dict() for item in items]
    for item in found:
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return found


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
def test_streamed_and_full_responses_are_equal(client, served, reply, tokens_per_step):
    served.texts.by_prompt = {"Go": reply}
    served.core.tokens_per_step = tokens_per_step
    fields = {"tools": [WEATHER, CLOCK]}
    full = ask(client, "Go", **fields)
    events = list(ask(client, "Go", stream=True, **fields))
    last = events[-1].response
    assert plain(last) == plain(full)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [item.to_dict() for item in last.output]
    with client.responses.stream(model="demo", input="Go", **fields) as stream:
        *_, end = stream
        accumulated = stream.get_final_response().output
    assert without_parsed(accumulated) == without_parsed(end.response.output)
    texts = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert texts == full.output_text


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("more", [{}, {"stop": ["wer", "end"]}, {"max_output_tokens": 5}])
def test_log_probabilities_are_the_same_however_the_tokens_come(client, served, reply, more):
    served.texts.by_prompt = {"Go": reply}
    stop = more.get("stop")
    body = {name: value for name, value in more.items() if name != "stop"} | {
        "tools": [WEATHER, CLOCK],
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }
    found = []
    for tokens_per_step in (1, 3, 100):
        served.core.tokens_per_step = tokens_per_step
        found.append(plain(ask(client, "Go", extra_body={"stop": stop}, **body)))
        for interval in (None, 50):
            extra = {"stop": stop, "stream_interval": interval}
            events = list(ask(client, "Go", stream=True, extra_body=extra, **body))
            found.append(plain(events[-1].response))
            deltas = [e for e in events if e.type == "response.output_text.delta"]
            done = [e for e in events if e.type == "response.output_text.done"]
            tokens = [token.to_dict() for e in deltas for token in e.logprobs]
            assert tokens == [token.to_dict() for e in done for token in e.logprobs]
    outputs = [response["output"] for response in found]
    assert outputs == [outputs[0]] * len(outputs)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ("plain words", ["plain words<|im_end|>"]),
        ("<t>let me think</t>the answer", ["the answer<|im_end|>"]),
        ("<t>only thought", []),
        ('Sure: [[get_weather {"city": "a"}]][[get_time {}]] done', ["Sure: ", " done<|im_end|>"]),
        ('<t>hm</t>text [[get_weather {"city": "b"}]]', ["text "]),
        ('x [[get_weather {"city": "never', ["x ", '[[get_weather {"city": "never<|im_end|>']),
        ("日本語 🌧!", ["日本語 🌧!<|im_end|>"]),
    ],
)
def test_log_probabilities_are_those_of_the_messages_tokens(client, served, reply, shown):
    served.texts.by_prompt = {"Go": reply}
    response = ask(
        client,
        "Go",
        tools=[WEATHER, CLOCK],
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    messages = [item.content[0] for item in response.output if item.type == "message"]
    spelled = [b"".join(bytes(t.bytes) for t in part.logprobs).decode() for part in messages]
    for found, wanted in zip(spelled, shown, strict=True):
        assert wanted in found  # a token may be of two items
        assert len(found) <= len(wanted) + 2
    assert {len(token.top_logprobs) for part in messages for token in part.logprobs} <= {2}
    for item in ask(client, "Go").output:
        assert item.type != "message" or item.content[0].logprobs == []


def test_the_official_client_parses_a_response_with_a_call_that_broke_off(client, served):
    served.texts.by_prompt = {"Go": 'x [[get_weather {"city": "never'}
    response = client.responses.parse(model="demo", input="Go", tools=[WEATHER])
    assert response.output_text == 'x [[get_weather {"city": "never'
    with client.responses.stream(model="demo", input="Go", tools=[WEATHER]) as stream:
        list(stream)
        assert stream.get_final_response().output_text == response.output_text
    tool = WEATHER | {"strict": True}
    fields = {"model": "demo", "input": "Go", "max_output_tokens": 12}
    with client.responses.stream(**fields, tools=[tool]) as stream:
        *_, last = stream
    assert (last.type, last.response.output[1].status) == ("response.incomplete", "incomplete")


def test_a_response_that_its_limit_ends_is_incomplete(client):
    events = list(ask(client, max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete"
    for response in (events[-1].response, ask(client, max_output_tokens=2)):
        assert response.status == response.output[0].status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage.output_tokens == 2


class Person(BaseModel):
    name: str
    age: int


def test_a_schema_reaches_the_engine_and_the_response_is_parsed(client, served):
    served.texts.by_prompt = {"Who": '{"name": "Ada", "age": 36}'}
    response = client.responses.parse(model="demo", input="Who?", text_format=Person)
    assert response.output_parsed == Person(name="Ada", age=36)
    schema = served.core.requests[0].params.structured_outputs.json
    assert schema["required"] == ["name", "age"]
    assert response.text.format.name == "Person"
    with client.responses.stream(model="demo", input="Who?", text_format=Person) as stream:
        list(stream)
        assert stream.get_final_response().output_parsed == Person(name="Ada", age=36)


def test_other_formats_and_our_own_fields_reach_the_engine(client, served):
    ask(client, text={"format": {"type": "json_object"}})
    ask(client, text={"format": {"type": "text"}, "verbosity": "low"})
    own = {"top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["x"], "warmth": 1.5, "priority": 3}
    ask(client, temperature=0.5, top_p=0.9, extra_body=own)
    first, second, third = served.core.requests
    assert first.params.structured_outputs.json_object
    assert second.params.structured_outputs is None
    assert (third.params.top_k, third.params.min_p, third.params.seed) == (5, 0.1, 7)
    assert third.params.extra_args["warmth"] == 1.5
    assert (third.params.temperature, third.params.top_p) == (0.5, 0.9)
    assert third.priority == 3


def test_a_tool_is_called_and_its_output_answered(client, served):
    served.texts.by_prompt = {
        "Oslo?": '[[get_weather {"city": "Oslo"}]]',
        "rain in Oslo": "It rains.",
    }
    first = ask(client, "Oslo?", tools=[WEATHER])
    (call,) = first.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Oslo"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain in Oslo"}
    question = {"role": "user", "content": "Oslo?"}
    second = ask(client, [question, *first.output, output], tools=[WEATHER], store=False)
    assert second.output_text == "It rains."
    continued = ask(client, [output], previous_response_id=first.id, tools=[WEATHER])
    assert continued.output_text == "It rains."
    assert prompt_of(served, -1) == prompt_of(served, -2)


SHELL = {"type": "custom", "name": "run", "description": "Runs a command"}


@pytest.mark.parametrize("tokens_per_step", [1, 4, 100])
def test_a_custom_tool_is_called_with_a_text_and_its_output_answered(
    client, served, tokens_per_step
):
    command = 'ls -l "a"\n🌧'
    call_text = "[[run " + json.dumps({"input": command}) + "]]"
    served.texts.by_prompt = {"List": call_text + "[[get_time {}]]", "total 0": "Nothing."}
    served.core.tokens_per_step = tokens_per_step
    tools = [SHELL, CLOCK]
    first = ask(client, "List", tools=tools)
    call, other = first.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "run", command)
    assert call.id.startswith("ctc_")
    assert (other.type, other.arguments) == ("function_call", "{}")
    events = [*ask(client, "List", tools=tools, stream=True)]
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    (done,) = (e for e in events if e.type == "response.custom_tool_call_input.done")
    assert "".join(deltas) == done.input == command
    assert len(deltas) > 1 or tokens_per_step > 1
    assert plain(events[-1].response) == plain(first)
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "total 0"}
    question = {"role": "user", "content": "List"}
    second = ask(client, [question, call, output], tools=tools, store=False)
    assert second.output_text == "Nothing."
    assert json.dumps({"input": command}, ensure_ascii=False) in prompt_of(served)
    ask(client, [output], previous_response_id=first.id, tools=tools)
    assert json.dumps({"input": command}, ensure_ascii=False) in prompt_of(served)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"format": {"type": "grammar", "syntax": "lark", "definition": "a"}}, "format.syntax"),
        ({"format": {"type": "grammar", "syntax": "regex"}}, "format"),
        ({"format": {"type": "json"}}, "format.type"),
        ({"name": "a b"}, "name"),
    ],
)
def test_a_custom_tool_that_is_not_supported_is_refused_as_it_was_sent(client, tool, param):
    with pytest.raises(openai.BadRequestError) as failed:
        ask(client, tools=[SHELL | tool])
    assert failed.value.param == f"tools[0].{param}"
    assert failed.value.body["message"].startswith(f"tools[0].{param}")


def test_a_regex_of_a_custom_tool_is_enforced(client, served):
    form = {"type": "grammar", "syntax": "regex", "definition": "ls|pwd"}
    tools = [SHELL | {"format": form}]
    choice = {"type": "custom", "name": "run"}
    for fields in ({}, {"tool_choice": "required"}, {"tool_choice": choice}):
        response = ask(client, tools=tools, **fields)
        (shape,) = served.core.requests[-1].params.structured_outputs.calls.shapes
        assert shape.pieces[1].schema["properties"]["input"]["pattern"] == "^(?:ls|pwd)$"
        assert response.tools[0].to_dict().items() >= tools[0].items()


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("none", None),
        ("auto", None),
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "name": "get_time"}, {"get_time"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}],
            },
            {"get_weather"},
        ),
    ],
)
def test_a_choice_of_tools_forces_calls_and_comes_back(client, served, choice, forced):
    response = ask(client, tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False)
    constraint = served.core.requests[0].params.structured_outputs
    shapes = None if constraint is None else {shape.tool for shape in constraint.calls.shapes}
    assert shapes == forced
    given = response.tool_choice
    assert (given if isinstance(given, str) else given.to_dict()) == choice
    assert [tool.name for tool in response.tools] == ["get_weather", "get_time"]
    assert response.parallel_tool_calls is False


def test_instructions_are_a_system_message_and_are_not_carried_over(client, served):
    first = ask(client, "Hi", instructions="Talk like a pirate.")
    assert "system\nTalk like a pirate.<|im_end|>" in prompt_of(served)
    ask(client, "And now?", previous_response_id=first.id, instructions="Be brief.")
    assert "pirate" not in prompt_of(served)
    assert "system\nBe brief.<|im_end|>" in prompt_of(served)
    assert prompt_of(served).count("I am a script.") == 1


def test_what_a_request_asks_for_comes_back(client):
    response = ask(
        client,
        metadata={"topic": "demo"},
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        service_tier="auto",
        max_tool_calls=3,
        truncation="auto",
        reasoning={"effort": "low", "summary": "auto"},
        store=False,
    )
    assert response.metadata == {"topic": "demo"}
    assert (response.user, response.safety_identifier, response.prompt_cache_key) == ("u", "s", "k")
    assert (response.max_tool_calls, response.truncation) == (3, "auto")
    assert response.reasoning.effort == "low"
    assert response.service_tier == "default"
    assert response.store is False


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "mcp"),
        ({"tools": [WEATHER | {"paramters": {}}]}, "tools[0].paramters", "'parameters'"),
        ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0].name", "letters"),
        ({"tools": [WEATHER], "tool_choice": {"type": "file_search"}}, "tool_choice", "function"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "no"}},
            "tool_choice",
            "'no'",
        ),
        ({"tool_choice": "required"}, "tools", "no tools"),
        ({"top_logprobs": 3}, "top_logprobs", "include"),
        ({"include": ["everything"]}, "include[0]", "message.output_text.logprobs"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format.schema",
            "schema",
        ),
        ({"text": {"fromat": {}}}, "text.fromat", "'format'"),
        ({"reasoning": {"efort": "low"}}, "reasoning.efort", "'effort'"),
        ({"reasoning": {"effort": "weird"}}, "reasoning.effort", "minimal"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens"),
        ({"max_output_tokens": "3"}, "max_output_tokens", "int"),
        ({"temperature": -1}, "temperature", "temperature"),
        ({"metadata": {"x" * 65: ""}}, "metadata", "64"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "obfuscation"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"messages": []}, "messages", "input"),
        ({"response_format": {"type": "text"}}, "response_format", "text"),
        ({"conversation": "c"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"n": 2}, "n", "one completion"),
        ({"instuctions": "x"}, "instuctions", "'instructions'"),
        ({"input": ""}, "input", "empty"),
        ({"input": []}, "input", "empty"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content", "list of parts"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "text only",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "item itself"),
        ({"input": "x " * 3000}, "input", "tokens"),
        ({"background": True, "store": False}, "background", "store: true"),
        ({"previous_response_id": "resp_none"}, "previous_response_id", "no response"),
        ({"request_id": "a b"}, "request_id", "visible"),
        ({"request_id": "q/input_items"}, "request_id", "'/'"),
        ({"truncation": "sometimes"}, "truncation", "sometimes"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_named_with_the_way_out(client, served, fields, param, words, stream):
    given = {"input": "Hi", "stream": stream} | fields
    with pytest.raises(openai.BadRequestError) as failed:
        client.post("/responses", body=given, cast_to=object)
    assert failed.value.param == param
    assert words in failed.value.body["message"]
    assert not served.core.requests


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as failed:
        client.responses.create(model="other", input="Hi")
    assert failed.value.param == "model"


@pytest.mark.parametrize("store", [False, True])
def test_a_failure_during_a_stream_is_its_last_event(client, served, store):
    served.texts.by_prompt = {
        "Go": ("some words", ErrorReport("request_failed", "device lost at /dev/nvidia0"))
    }
    served.core.step_s = 0.01
    events = []
    for event in ask(client, "Go", stream=True, store=store):
        events.append(event)
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.code == "server_error"
    assert "/dev" not in events[-1].response.error.message


def test_each_event_has_its_name_and_nothing_follows_the_last(served):
    body = {"input": "Hi", "stream": True}
    text = httpx.post(f"{served.url}/v1/responses", json=body).text
    *frames, end = text.split("\n\n")
    assert end == ""
    for frame in frames:
        name, data = frame.split("\n")
        kind = json.loads(data.removeprefix("data: "))["type"]
        assert name == f"event: {kind}"
        assert data.startswith(f'data: {{"type":"{kind}"')
    assert frames[-1].startswith("event: response.completed")
