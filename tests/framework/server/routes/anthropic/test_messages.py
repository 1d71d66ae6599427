"""Messages through the application in this process: content, stops, usage, streams and errors."""

import asyncio
import json

import pytest
from any_messages import any_messages
from asgi_parts import JSON, Wire, call, get, post, scope_of
from changed_json import changed_anywhere
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_core import ScriptedCore
from server_parts import MAX_MODEL_LEN, Texts, make_frontend

from quire.config import ServerSettings
from quire.errors import CapacityError
from quire.frontend.dispatch.backlog import QueueLimits
from quire.messages import ErrorReport
from quire.server.app import create_app
from quire.server.http.event_stream import EventStream
from quire.server.routes.anthropic.content_blocks import SIGNATURE

PATH = "/v1/messages"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
REPLY = '<t>hm</t>Well. [[f {"a": [1, 2]}]]'


@pytest.fixture
def ask(frontend):
    app = create_app(frontend, ServerSettings(), list)

    def run(**fields):
        return post(app, PATH, **{"messages": HI, "max_tokens": 100} | fields)

    return run


@pytest.fixture
def count(frontend):
    app = create_app(frontend, ServerSettings(), list)

    def run(**fields):
        return post(app, f"{PATH}/count_tokens", **fields)

    return run


def events(wire):
    """Return the events of a stream, whose names must be their types."""
    assert wire.headers["content-type"].startswith("text/event-stream")
    *found, end = wire.body.decode().split("\n\n")
    assert end == ""
    read = []
    for event in found:
        name, data = event.split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read


def gathered(stream):
    """Return the message that a stream describes, as a full response has it."""
    first, *middle, delta, last = stream
    assert (first["type"], delta["type"], last) == (
        "message_start", "message_delta", {"type": "message_stop"},
    )  # fmt: skip
    message, inputs = first["message"], {}
    assert (message["content"], message["stop_reason"]) == ([], None)
    for event in middle:
        match event["type"]:
            case "content_block_start":
                message["content"].append(event["content_block"])
                assert len(message["content"]) == event["index"] + 1
            case "content_block_delta":
                part, block = event["delta"], message["content"][event["index"]]
                name = part["type"].removesuffix("_delta")
                if name == "input_json":
                    inputs[event["index"]] = inputs.get(event["index"], "") + part["partial_json"]
                else:
                    block[name] += part[name]
    for index, text in inputs.items():
        message["content"][index]["input"] = partial_json(text)
    return message | delta["delta"] | {"usage": delta["usage"]}


def partial_json(text):
    """Return the input of a call; None of one that broke off."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def without_ids(message):
    content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return {k: v for k, v in message.items() if k != "id"} | {"content": content}


def test_a_message_has_the_fields_of_the_api(ask, core):
    core.num_cached_tokens = 4
    message = ask().json()
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "demo",
        "content": [{"type": "text", "text": "I am a script."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_read_input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "output_tokens": 11,
        },
    }


def test_reasoning_text_and_calls_are_blocks(ask, core):
    core.script.by_prompt = {"Hi": REPLY}
    message = ask(tools=[TOOL]).json()
    call_block = message["content"].pop()
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "text", "text": "Well. "},
    ]
    assert call_block.pop("id").startswith("toolu_")
    assert call_block == {"type": "tool_use", "name": "f", "input": {"a": [1, 2]}}
    assert message["stop_reason"] == "tool_use"


def test_reasoning_may_be_left_out(ask, core):
    core.script.by_prompt = {"Hi": REPLY}
    thinking = {"type": "adaptive", "display": "omitted"}
    assert ask(thinking=thinking).json()["content"][0]["thinking"] == ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reply", "fields", "stop"),
    [
        ("Hi", {}, ("end_turn", None)),
        ("Hi there", {"stop_sequences": ["x", "the"]}, ("stop_sequence", "the")),
        ("Hi there", {"stop_token_ids": [0]}, ("end_turn", None)),
        ("Hi there", {"max_tokens": 1}, ("max_tokens", None)),
        ("[[f {}]]", {"tools": [TOOL]}, ("tool_use", None)),
        ("[[f {}]]", {}, ("end_turn", None)),
        ("[[f {", {"tools": [TOOL]}, ("end_turn", None)),
        ("long " * MAX_MODEL_LEN, {"max_tokens": 9999}, ("model_context_window_exceeded", None)),
    ],
)
def test_a_message_says_why_it_has_ended(ask, core, stream, reply, fields, stop):
    core.script.by_prompt = {"Hi": reply}
    core.tokens_per_step = 8
    wire = ask(**fields, stream=stream)
    message = gathered(events(wire)) if stream else wire.json()
    assert (message["stop_reason"], message["stop_sequence"]) == stop


def test_a_stream_has_these_events_in_this_order(ask, core):
    core.script.by_prompt = {"Hi": "<t>hm</t>Yes[[f {}]]"}
    found = events(ask(stream=True, tools=[TOOL]))
    kinds = [event["type"].removeprefix("content_") for event in found]
    kinds = [
        b for a, b in zip([None, *kinds], kinds, strict=False) if (a, b) != ("block_delta",) * 2
    ]
    block = ["block_start", "block_delta", "block_stop"]
    assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]


_PARTS = st.sampled_from(["Hi ", "\n", '[[f {"a": 1}]]', "[[g {}]]", "<t>hm</t>", "]", "é"])
_TAILS = st.sampled_from(["", "[", "[[f", '[[f {"a": ', "]]"])  # some are calls that break off


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    parts=st.lists(_PARTS, max_size=6),
    tail=_TAILS,
    tokens_per_step=st.integers(1, 5),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "max_tokens": st.integers(1, 30),
            "stop_sequences": st.just(["H", "a"]),
            "tools": st.just([TOOL]),
            "stream_interval": st.integers(1, 7),
            "thinking": st.just({"type": "adaptive", "display": "omitted"}),
            "tool_choice": st.just({"type": "auto", "disable_parallel_tool_use": True}),
        },
    ),
)
def test_a_stream_has_the_content_the_usage_and_the_stop_of_a_full_response(
    ask, core, parts, tail, tokens_per_step, fields
):
    core.script.by_prompt = {"Hi": "".join([*parts, tail])}
    core.tokens_per_step = tokens_per_step
    if "tools" not in fields:
        fields.pop("tool_choice", None)
    whole, stream = ask(**fields), ask(**fields, stream=True)
    assert (whole.status, stream.status) == (200, 200)
    assert without_broken_calls(gathered(events(stream))) == without_ids(whole.json())


def is_start_of(block, text):
    """Whether a block is that of a call, of which this is the text."""
    return block["type"] == "tool_use" and text.lstrip().startswith(f"[[{block['name']} ")


def without_broken_calls(message):
    """Return a message without ids and calls that broke off, whose text follows."""
    content = []
    for block in without_ids(message)["content"]:
        is_text = block["type"] == "text"
        if is_text and content and is_start_of(content[-1], block["text"]):
            del content[-1]
        if is_text and content and content[-1]["type"] == "text":
            block = block | {"text": content.pop()["text"] + block["text"]}
        content.append(block)
    return without_ids(message) | {"content": content}


def test_the_first_usage_has_the_tokens_of_the_prompt(ask, core):
    core.num_cached_tokens = 4
    first, *_, delta, _ = events(ask(stream=True))
    assert first["message"]["usage"]["input_tokens"] == 5
    assert first["message"]["usage"]["cache_read_input_tokens"] == 4
    assert delta["usage"]["output_tokens"] == 11


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"system": "Be kind."}, "<|im_start|>system\nBe kind.<|im_end|>\n"),
        ({"tools": [TOOL]}, "Tools:\nf()"),
        ({"messages": [*HI, {"role": "assistant", "content": "I am"}]}, "assistant\nI am"),
    ],
)
def test_the_prompt_has_what_was_sent(ask, core, tokenizer, fields, prompt):
    assert ask(**fields).status == 200
    found = tokenizer.decode(core.requests[-1].token_ids, skip_special_tokens=False)
    assert prompt in found
    assert found.endswith(prompt) or found.endswith("<|im_start|>assistant\n")


def test_sampling_fields_reach_the_engine(ask, core):
    given = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 3, "min_p": 0.125}
    assert ask(**given, warmth=1.5, priority=2).status == 200
    request = core.requests[-1]
    assert {name: getattr(request.params, name) for name in given} == given
    assert (request.params.extra_args["warmth"], request.priority) == (1.5, 2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": ["x"] * 40}, "stop_sequences has 40 items"),
        ({"tools": [TOOL | {"name": "a b"}]}, r"tools[0].name must be"),
        ({"tools": [TOOL, TOOL]}, "'f' is given twice"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"tool_choice": {"type": "tool", "name": "g"}, "tools": [TOOL]}, "'g'"),
        ({"stop": ["x"]}, "send stop_sequences"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "'image'"),
        ({"max_tokens": "9"}, "max_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_is_a_400_that_names_it(ask, fields, said, stream):
    wire = ask(**fields, stream=stream)
    assert (wire.status, wire.error["type"]) == (400, "invalid_request_error")
    assert said in wire.error["message"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize(
    "content", [[], [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1"}]]
)
def test_a_conversation_without_any_message_is_refused(frontend, path, content):
    body = {"messages": [{"role": "system", "content": content}]}
    body |= {"max_tokens": 3} if path == PATH else {}
    wire = post(create_app(frontend, ServerSettings(), list), path, **body)
    assert (wire.status, wire.error["type"]) == (400, "invalid_request_error")
    assert "messages must have" in wire.error["message"]


ALL = {
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        *HI,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "r"}],
                    "is_error": True,
                }
            ],
        },
    ],
    "tools": [TOOL | {"type": "custom", "strict": False, "input_examples": [{"a": 1}]}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 5, "display": "summarized"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    "chat_template_kwargs": {"a": 1},
}


@pytest.mark.parametrize("is_count", [False, True])
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changed_anywhere(ALL) | st.builds(lambda sent: ALL | {"messages": sent}, any_messages()))
def test_whatever_is_sent_is_answered_or_refused(ask, count, is_count, body):
    wire = count(**body) if is_count else ask(**body, max_tokens=2)
    if wire.status != 200:
        assert (wire.status, wire.error["type"]) == (400, "invalid_request_error")


def test_a_stream_that_breaks_ends_with_an_error_event(ask, core):
    report = ErrorReport(CapacityError.code, "the cache is full")
    core.script.by_prompt = {"Hi": ("I am", report)}
    *_, last = events(ask(stream=True))
    assert (last["type"], last["error"]["message"]) == ("error", "the cache is full")
    assert last["request_id"].startswith("req-")


def test_a_keep_alive_is_a_ping():
    async def late():
        yield b'{"type":"message_stop"}'
        await asyncio.sleep(0.2)

    async def main():
        return await call(EventStream(late(), "req-1", keep_alive_s=0.02), Wire(), scope_of(PATH))

    first, *others = events(asyncio.run(main()))
    assert first == {"type": "message_stop"}
    assert others
    assert all(event == {"type": "ping"} for event in others)


def test_the_headers_of_anthropics_clients_are_accepted(frontend):
    app = create_app(frontend, ServerSettings(api_key=("sk-1",)), list)
    own = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "sk-1"}
    body = json.dumps({"messages": HI, "max_tokens": 3}).encode()
    wire = asyncio.run(call(app, Wire(body), scope_of(PATH, headers=JSON | own)))
    assert wire.status == 200


def test_an_overload_is_refused_with_a_time_to_try_again(tokenizer):
    core = ScriptedCore(Texts(tokenizer))
    frontend = make_frontend(tokenizer, core, queue_limits=QueueLimits(0, 0))
    wire = post(create_app(frontend, ServerSettings(), list), PATH, messages=HI, max_tokens=3)
    asyncio.run(frontend.shutdown())
    assert (wire.status, wire.error["type"]) == (503, "overloaded_error")
    assert wire.headers["retry-after"]


def test_metrics_count_messages_by_their_route(frontend):
    app = create_app(frontend, ServerSettings(), list)
    assert post(app, PATH, messages=HI, max_tokens=3).status == 200
    assert f'route="{PATH}",status="200"}} 1' in get(app, "/metrics").body.decode()
