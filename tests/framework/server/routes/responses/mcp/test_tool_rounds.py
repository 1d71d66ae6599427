"""Responses whose model calls tools of tool servers, as OpenAI's client sees them."""

import json
import time

import httpx
import openai
import pytest

from quire.messages import ErrorReport

WEATHER_CALL = '[[get_weather {"city": "Oslo"}]]'
RAIN = "It rains in Oslo."
CLOCK = {"type": "function", "name": "get_time", "parameters": {"type": "object"}}


def raw(*allowed, **fields):
    tool = {"type": "mcp", "server_label": "raw", "require_approval": "never"}
    return tool | {"allowed_tools": list(allowed or ("get_weather",))} | fields


def ask(client, question="Weather?", tools=None, **fields):
    tools = [raw()] if tools is None else tools
    return client.responses.create(model="demo", input=question, tools=tools, **fields)


def prompt_of(served, index=-1):
    ids = served.core.requests[index].token_ids
    return served.frontend.tokenizer.decode(ids, skip_special_tokens=False)


def wait_for_end(client, response):
    deadline = time.monotonic() + 10
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    return response


def test_the_model_gets_the_output_of_a_call_and_answers(client, served):
    served.texts.by_prompt = {"Weather?": f"Let me see. {WEATHER_CALL}", RAIN: "Take a coat."}
    response = ask(client)
    listed, message, call, answer = response.output
    assert (listed.type, listed.server_label, listed.error) == ("mcp_list_tools", "raw", None)
    assert [tool.name for tool in listed.tools] == ["get_weather"]
    assert listed.tools[0].input_schema["required"] == ["city"]
    assert message.content[0].text == "Let me see. "
    assert (call.type, call.status, call.server_label, call.name) == (
        "mcp_call", "completed", "raw", "get_weather",
    )  # fmt: skip
    assert (call.arguments, call.output, call.error) == ('{"city": "Oslo"}', RAIN, None)
    assert answer.content[0].text == response.output_text.removeprefix("Let me see. ")
    assert response.output_text == "Let me see. Take a coat."
    assert response.status == "completed"
    assert RAIN in prompt_of(served)
    usages = [len(request.token_ids) for request in served.core.requests]
    assert len(usages) == 2
    assert response.usage.input_tokens == sum(usages)
    assert response.tools[0].server_label == "raw"


@pytest.mark.parametrize("tokens_per_step", [1, 100])
def test_a_stream_has_the_events_of_tools_and_the_same_response(client, served, tokens_per_step):
    served.core.tokens_per_step = tokens_per_step
    served.texts.by_prompt = {"Weather?": WEATHER_CALL, RAIN: "Take a coat."}
    whole = ask(client)
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    texts = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * texts,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert without_ids(last) == without_ids(whole)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [item.to_dict() for item in last.output]
    indexes = [e.output_index for e in events if hasattr(e, "output_index")]
    assert indexes == sorted(indexes)


def without_ids(response):
    dumped = response.to_dict()
    for name in ("id", "created_at", "completed_at"):
        del dumped[name]
    for item in dumped["output"]:
        del item["id"]
    return dumped


def test_several_calls_of_one_turn_are_run_and_keep_their_places(client, served):
    served.texts.by_prompt = {
        "Weather?": '[[wait {}]][[get_weather {"city": "Oslo"}]]', RAIN: "Fine.",
    }  # fmt: skip
    events = list(ask(client, tools=[raw("get_weather", "wait")], stream=True))
    _, slow, quick, answer = events[-1].response.output
    assert (slow.output, quick.output, answer.content[0].text) == ("done", RAIN, "Fine.")
    ended = [e.item.name for e in events if getattr(getattr(e, "item", None), "output", None)]
    assert sorted(ended) == ["get_weather", "wait"]
    prompt = prompt_of(served)
    assert prompt.index("done") < prompt.index(RAIN)


def test_the_error_of_a_tool_is_told_to_the_model(client, served):
    served.texts.by_prompt = {"Weather?": "[[fail {}]]", "cupboard": "I could not."}
    events = list(ask(client, tools=[raw("fail")], stream=True))
    assert "response.mcp_call.failed" in [event.type for event in events]
    _, call, answer = events[-1].response.output
    assert (call.status, call.output) == ("failed", None)
    assert call.error.type == "mcp_tool_execution_error"
    assert call.error.content == [{"type": "text", "text": "the cupboard is bare"}]
    assert answer.content[0].text == "I could not."


@pytest.mark.parametrize("arguments", ["nonsense", "7", "[" * 100])
def test_arguments_that_are_no_object_are_an_error_of_the_call(client, served, arguments):
    served.texts.by_prompt = {"no JSON object": "Sorry."}
    asked = {
        "type": "mcp_approval_request", "id": "a", "server_label": "raw", "name": "get_weather",
        "arguments": arguments,
    }  # fmt: skip
    answer = {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
    _, failed, answered = ask(client, [asked, answer]).output
    assert (failed.error.type, failed.error.code) == ("mcp_protocol_error", -32602)
    assert answered.content[0].text == "Sorry."


def test_a_server_that_dies_in_a_call_is_an_error_and_is_started_again(client, served):
    served.texts.by_prompt = {
        "Go": "[[leave {}]]", "the tool server failed": "Gone.",
        "Weather?": WEATHER_CALL, RAIN: "Back.",
    }  # fmt: skip
    gone = ask(client, "Go", [raw("leave")])
    assert gone.output[1].error.type == "mcp_protocol_error"
    assert gone.output_text == "Gone."
    assert ask(client).output_text == "Back."


def test_an_output_is_cut_at_its_limit_with_a_note(client, served):
    served.texts.by_prompt = {"Weather?": '[[repeat {"text": "é"}]]', "cut off": "Long."}
    call = ask(client, tools=[raw("repeat")]).output[1]
    assert len(call.output.encode()) <= 300
    assert call.output.startswith("ééé")
    assert call.output.endswith("[cut off: the output has 2000 bytes]")


def test_a_client_that_has_a_function_to_call_goes_on(client, served):
    served.texts.by_prompt = {
        "Weather?": f"[[get_time {{}}]]{WEATHER_CALL}",
        "it is noon": "At noon.",
    }
    tools = [raw(), CLOCK]
    first = ask(client, tools=tools)
    _, function, call = first.output
    assert (function.type, function.name, call.output) == ("function_call", "get_time", RAIN)
    assert len(served.core.requests) == 1
    output = {"type": "function_call_output", "call_id": function.call_id, "output": "it is noon"}
    second = ask(client, [output], tools, previous_response_id=first.id)
    assert [item.type for item in second.output] == ["message"]
    prompt = prompt_of(served)
    assert prompt.count(RAIN) == prompt.count("it is noon") == 1


def test_items_of_calls_can_be_sent_back_as_they_came(client, served):
    served.texts.by_prompt = {
        "Weather?": WEATHER_CALL,
        RAIN: "Coat.",
        "Thanks, dear model.": "Bye.",
    }
    first = ask(client)
    given = [{"role": "user", "content": "Weather?"}, *(item.to_dict() for item in first.output)]
    second = ask(client, [*given, {"role": "user", "content": "Thanks, dear model."}])
    assert [item.type for item in second.output] == ["message"]  # the tools are listed already
    assert prompt_of(served).count(RAIN) == 1
    third = ask(client, "Thanks, dear model.", previous_response_id=first.id)
    assert third.output_text == "Bye."
    listed = client.responses.input_items.list(third.id, order="asc").data
    assert [item.type for item in listed] == [
        "message", "mcp_list_tools", "mcp_call", "message", "message",
    ]  # fmt: skip


def test_the_rounds_of_calls_have_a_limit(served):
    served.texts.by_prompt = {"Weather?": WEATHER_CALL}
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        response = ask(client)
    calls = [item for item in response.output if item.type == "mcp_call"]
    assert [call.status for call in calls] == ["completed"] * 3 + ["incomplete"]
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete", "max_tool_rounds",
    )  # fmt: skip


def test_a_request_may_limit_its_calls(client, served):
    served.texts.by_prompt = {"Weather?": WEATHER_CALL * 2, RAIN: "Fine."}
    _, first, second, answer = ask(client, max_tool_calls=1).output
    assert (first.output, second.output) == (RAIN, None)
    assert "may have 1 calls" in second.error.message
    assert answer.content[0].text == "Fine."


def test_the_limit_of_tokens_is_that_of_all_turns(client, served):
    served.texts.by_prompt = {"Weather?": WEATHER_CALL, RAIN: "Take a coat, and more."}
    first = len(served.frontend.tokenizer.encode(WEATHER_CALL)) + 1
    response = ask(client, max_output_tokens=first + 2)
    assert response.usage.output_tokens == first + 2
    assert response.incomplete_details.reason == "max_output_tokens"
    alone = ask(client, max_output_tokens=first)
    assert [item.type for item in alone.output] == ["mcp_list_tools", "mcp_call"]
    assert (alone.output[1].output, alone.status) == (RAIN, "incomplete")


@pytest.mark.parametrize("require_approval", ["never", "always"])
def test_a_call_that_is_cut_is_not_run_and_no_client_is_asked(client, served, require_approval):
    served.texts.by_prompt = {"Weather?": f"Sure. {WEATHER_CALL}"}
    num_tokens = len(served.frontend.tokenizer.encode(f"Sure. {WEATHER_CALL}")) - 3
    tools = [raw(require_approval=require_approval)]
    response = ask(client, tools=tools, max_output_tokens=num_tokens)
    _, message, call = response.output
    assert (message.content[0].text.strip(), message.status) == ("Sure.", "completed")
    assert (call.type, call.name, call.status) == ("mcp_call", "get_weather", "incomplete")
    assert '{"city": "Oslo"}'.startswith(call.arguments)
    assert call.arguments
    assert (call.output, response.incomplete_details.reason) == (None, "max_output_tokens")
    assert len(served.core.requests) == 1
    events = [*ask(client, tools=tools, max_output_tokens=num_tokens, stream=True)]
    assert "response.mcp_call_arguments.delta" in [event.type for event in events]
    assert "response.mcp_call_arguments.done" not in [event.type for event in events]
    streamed = events[-1].response.output
    assert [(item.type, item.status) for item in streamed[1:]] == [
        ("message", "completed"), ("mcp_call", "incomplete"),
    ]  # fmt: skip
    assert streamed[2].arguments == call.arguments


def test_an_output_that_leaves_no_room_ends_the_response(client, served):
    served.texts.by_prompt = {"Weather?": '[[repeat {"text": "x y z "}]]'}
    response = ask(client, "Weather? " + "word " * 60, [raw("repeat")])
    assert response.output[1].status == "completed"
    assert (response.status, response.incomplete_details.reason) == (
        "incomplete", "max_output_tokens",
    )  # fmt: skip


def test_a_forced_call_is_forced_once(client, served):
    served.texts.by_prompt = {"Weather?": WEATHER_CALL, RAIN: "Fine."}
    for choice in (
        "required",
        {"type": "mcp", "server_label": "raw", "name": "get_weather"},
        {"type": "mcp", "server_label": "raw"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "mcp", "server_label": "raw"}],
        },
    ):
        served.core.requests.clear()
        response = ask(client, tools=[raw("get_weather", "fail")], tool_choice=choice)
        assert response.output_text == "Fine."
        forced, free = (r.params.structured_outputs for r in served.core.requests)
        assert (forced is not None, free) == (True, None)


def test_tools_of_one_name_have_the_label_in_front(client, served):
    served.texts.by_prompt = {
        "Weather?": '[[other_get_weather {"city": "Oslo"}]]', RAIN: "Fine.",
    }  # fmt: skip
    response = ask(client, tools=[raw(), raw(server_label="other")])
    call = response.output[2]
    assert (call.server_label, call.name, call.output) == ("other", "get_weather", RAIN)
    prompt = prompt_of(served)
    assert "raw_get_weather" in prompt
    assert prompt.count("other_get_weather") >= 2  # as a tool, and as the call


def test_a_name_that_functions_may_not_have_is_changed(client, served):
    served.texts.by_prompt = {"Weather?": "[[process_id {}]]"}
    response = ask(client, tools=[raw("process/id")], max_output_tokens=30)
    assert response.output[1].name == "process/id"
    assert response.output[1].output.isdigit()


def test_a_call_that_needs_approval_waits_for_the_client(client, served):
    served.texts.by_prompt = {
        "Weather?": WEATHER_CALL,
        RAIN: "Take a coat.",
        "the user refused it": "Well.",
    }
    tools = [raw(require_approval="always")]
    first = ask(client, tools=tools)
    request = first.output[1]
    assert (request.type, request.name, request.arguments) == (
        "mcp_approval_request", "get_weather", '{"city": "Oslo"}',
    )  # fmt: skip
    assert first.status == "completed"
    assert len(served.core.requests) == 1
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id}
    fields = {"tools": tools, "previous_response_id": first.id}
    approved = ask(client, [answer | {"approve": True}], **fields)
    call, message = approved.output
    assert (call.type, call.output, call.approval_request_id) == ("mcp_call", RAIN, request.id)
    assert message.content[0].text == "Take a coat."
    assert len(served.core.requests) == 2
    assert prompt_of(served).count(RAIN) == 1
    with pytest.raises(openai.BadRequestError, match="was run already"):
        ask(client, [answer | {"approve": True}], **fields)
    assert len(served.core.requests) == 2
    again = ask(client, "So?", tools=tools, previous_response_id=approved.id)
    assert [item.type for item in again.output] == ["message"]
    assert prompt_of(served).count("get_weather") == prompt_of(served, 1).count("get_weather")
    refused = ask(client, [answer | {"approve": False, "reason": "no"}], **fields)
    assert [item.type for item in refused.output] == ["message"]
    assert "refused it. no" in prompt_of(served)


def test_an_approved_call_is_streamed_before_the_first_token(client, served):
    served.texts.by_prompt = {"Weather?": WEATHER_CALL, RAIN: "Coat."}
    tools = [raw(require_approval={"always": {"tool_names": ["get_weather"]}})]
    first = ask(client, tools=tools)
    answer = {
        "type": "mcp_approval_response", "approval_request_id": first.output[1].id, "approve": True,
    }  # fmt: skip
    stream = ask(client, [answer], tools=tools, previous_response_id=first.id, stream=True)
    kinds = [event.type for event in stream]
    assert kinds[:7] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_work_in_the_background(client, served, stream):
    served.texts.by_prompt = {"Weather?": WEATHER_CALL, RAIN: "Take a coat."}
    response = ask(client, background=True, stream=stream)
    if stream:
        events = list(response)
        response = events[-1].response
        rest = list(client.responses.retrieve(response.id, stream=True, starting_after=3))
        assert [event.type for event in rest] == [event.type for event in events[4:]]
    ended = wait_for_end(client, response)
    assert [item.type for item in ended.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert client.responses.retrieve(ended.id).to_dict() == ended.to_dict()


def test_a_cancelled_response_cancels_its_call(client, served, wait_for):
    served.texts.by_prompt = {"Weather?": "[[wait {}]]"}
    response = ask(client, tools=[raw("wait")], background=True)
    assert wait_for(lambda: len(served.core.requests) == 1 and not served.core.has_work())
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert [item.status for item in cancelled.output[1:]] in ([], ["incomplete"])
    assert len(served.core.requests) == 1


def test_a_client_that_leaves_cancels_its_call(served, wait_for):
    served.texts.by_prompt = {"Weather?": "[[wait {}]]", "done": "Never."}
    body = {"input": "Weather?", "tools": [raw("wait")]}
    name = 'quire_tool_server_calls_total{end="cancelled",server="raw"}'
    before = metric(served, name)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}/v1/responses", json=body, timeout=0.3)
    assert wait_for(lambda: metric(served, name) == before + 1)
    assert len(served.core.requests) == 1


def metric(served, name):
    text = httpx.get(f"{served.url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return float(lines[0].rsplit(" ", 1)[1]) if lines else 0.0


def test_calls_are_counted_and_timed(client, served):
    served.texts.by_prompt = {"Weather?": f"{WEATHER_CALL}[[fail {{}}]]", RAIN: "Fine."}
    names = [
        'quire_tool_server_calls_total{end="completed",server="raw"}',
        'quire_tool_server_calls_total{end="failed",server="raw"}',
        'quire_tool_server_call_duration_seconds_count{server="raw"}',
    ]
    before = [metric(served, name) for name in names]
    ask(client, tools=[raw("get_weather", "fail")])
    after = [metric(served, name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 2]


def test_the_access_log_has_the_number_of_calls(served, access_log, wait_for):
    served.texts.by_prompt = {"Weather?": WEATHER_CALL * 2, RAIN: "Fine."}
    bodies = ({"input": "Weather?", "tools": [raw()]}, {"input": "Hi"})
    responses = [httpx.post(f"{served.url}/v1/responses", json=body) for body in bodies]
    ids = [response.headers["x-request-id"] for response in responses]
    assert wait_for(lambda: all(name in access_log.read_text() for name in ids))
    lines = {
        line["request_id"]: line for line in map(json.loads, access_log.read_text().splitlines())
    }
    calls, none = (lines[name] for name in ids)
    assert responses[0].json()["output"][-1]["type"] == "message"
    assert calls["tool_calls"] == 2
    assert calls["finish_reasons"] == ["stop", "stop"]
    assert calls["completion_tokens"] > none["completion_tokens"]
    assert "tool_calls" not in none
    assert RAIN not in access_log.read_text()


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_after_a_call_is_the_status_of_the_response(served, stream):
    error = ErrorReport("overloaded", "the queue is full")
    served.texts.by_prompt = {"Weather?": WEATHER_CALL, RAIN: ("", error)}
    name = 'quire_tool_server_calls_total{end="completed",server="raw"}'
    before = metric(served, name)
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:  # it tries again
        response = ask(client, stream=stream)
        if stream:
            *_, last = response
            response = last.response
        assert metric(served, name) == before + 1
        assert (response.status, response.error.code) == ("failed", "server_error")
        assert response.error.message == "the queue is full"
        assert (response.output[1].type, response.output[1].output) == ("mcp_call", RAIN)
        usage = response.usage
        assert usage.output_tokens > 0
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_a_failure_before_any_call_is_the_status_of_the_answer(client, served):
    served.texts.by_prompt = {"Weather?": ("", ErrorReport("overloaded", "the queue is full"))}
    with pytest.raises(openai.InternalServerError) as failed:
        ask(client)
    assert failed.value.status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_the_time_of_a_request_is_also_that_of_its_calls(client, served, stream):
    served.texts.by_prompt = {"Weather?": "[[wait {}]]", "done": "Never."}
    name = 'quire_tool_server_calls_total{end="cancelled",server="raw"}'
    before = metric(served, name)
    response = ask(client, tools=[raw("wait")], stream=stream, extra_body={"timeout_s": 0.6})
    if stream:
        *events, last = response
        response = last.response
        assert [event.type for event in events[-2:]] == [
            "response.mcp_call.failed", "response.output_item.done",
        ]  # fmt: skip
        assert events[-1].item.status == "incomplete"
        assert last.sequence_number == len(events)
    assert response.status == "failed"
    assert "the calls of tools had not ended" in response.error.message
    assert "its timeout_s is 0.6 s" in response.error.message
    assert response.output[1].status == "incomplete"
    assert metric(served, name) == before + 1
    assert len(served.core.requests) == 1


def test_a_cancelled_stream_ends_the_items_that_are_open(client, served):
    served.texts.by_prompt = {"Weather?": "[[wait {}]]"}
    events = []
    for event in ask(client, tools=[raw("wait")], background=True, stream=True):
        events.append(event)
        if event.type == "response.mcp_call_arguments.done":
            client.responses.cancel(events[0].response.id)
    assert [event.type for event in events[-3:]] == [
        "response.mcp_call.failed", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-2].item.to_dict() == events[-1].response.output[1].to_dict()
    again = list(client.responses.retrieve(events[-1].response.id, stream=True))
    assert [event.to_dict() for event in again] == [event.to_dict() for event in events]


def test_an_approved_call_that_breaks_off_is_not_run_again(client, served):
    served.texts.by_prompt = {"Weather?": "[[wait {}]]", "it may have had its effect": "Hm."}
    tools = [raw("wait", require_approval="always")]
    first = ask(client, tools=tools)
    answer = {
        "type": "mcp_approval_response", "approval_request_id": first.output[1].id, "approve": True,
    }  # fmt: skip
    fields = {"tools": tools, "previous_response_id": first.id}
    broken = ask(client, [answer], extra_body={"timeout_s": 0.6}, **fields)
    assert broken.status == "failed"
    with pytest.raises(openai.BadRequestError, match="was run already") as failed:
        ask(client, [answer], **fields)
    assert failed.value.param == "input[0]"
    assert ask(client, "And?", tools=tools, previous_response_id=broken.id).output_text == "Hm."


def test_an_error_of_a_tool_names_it_by_its_place_in_the_request(served):
    function = {"type": "function", "name": "no spaces", "parameters": {"type": "object"}}
    body = {"input": "Hi", "tools": [raw(), function]}
    error = httpx.post(f"{served.url}/v1/responses", json=body).json()["error"]
    assert error["param"] == "tools[1].name"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [raw("no_tool")]}, "tools[0].allowed_tools"),
        ({"tool_choice": {"type": "mcp", "server_label": "other"}}, "tool_choice.server_label"),
        ({"tool_choice": {"type": "mcp", "server_label": "raw", "name": "x"}}, "tool_choice"),
        (
            {"tool_choice": {"type": "mcp", "server_label": "raw", "nam": "get_weather"}},
            "tool_choice.nam",
        ),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        (
            {"input": [{"type": "mcp_call", "server_label": "raw", "name": "f"}]},
            "input[0].id",
        ),
        (
            {
                "input": [
                    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True}
                ]
            },
            "input[0].approval_request_id",
        ),
        (
            {
                "input": [
                    {
                        "type": "mcp_approval_request", "id": "a", "server_label": "raw",
                        "name": "fail", "arguments": "{}",
                    },
                    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
                ]
            },
            "input[1]",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_anything_is_generated(served, fields, param):
    body = {"input": "Hi", "tools": [raw()]} | fields
    response = httpx.post(f"{served.url}/v1/responses", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert served.core.requests == []
