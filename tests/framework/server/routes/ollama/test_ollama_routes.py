"""Ollama's chats and completions: translation, streams, final counts, and refusals by name."""

import asyncio
import json

import pytest
from asgi_parts import Wire, call, post, scope_of
from changed_json import changed_anywhere
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quire.config import ServerSettings
from quire.messages import ErrorReport
from quire.server.app import create_app

HI = [{"role": "user", "content": "Hi"}]
CALL = '[[weather {"city": "Oslo"}]]'
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
VOLATILE = {"created_at", "total_duration", "load_duration", "prompt_eval_duration"} | {
    "eval_duration"
}


@pytest.fixture
def app(frontend):
    return create_app(frontend, ServerSettings(), list)


def lines(wire):
    assert wire.headers["content-type"] == "application/x-ndjson"
    assert wire.body.endswith(b"\n")
    return [json.loads(line) for line in wire.body.decode().split("\n")[:-1]]


def without_ids(calls):
    return [call["function"] for call in calls or ()]


def joined(found):
    """Join the lines of a chat's stream to a response in full."""
    *pieces, last = found
    assert all(piece["done"] is False for piece in pieces)
    message = {
        "content": "".join(piece["message"]["content"] for piece in pieces),
        "thinking": "".join(piece["message"].get("thinking", "") for piece in pieces),
        "calls": [c for p in pieces for c in without_ids(p["message"].get("tool_calls"))],
    }
    return message, {k: v for k, v in last.items() if k not in VOLATILE | {"message"}}


def whole(found):
    message = found["message"]
    parts = {
        "content": message["content"],
        "thinking": message.get("thinking", ""),
        "calls": without_ids(message.get("tool_calls")),
    }
    return parts, {k: v for k, v in found.items() if k not in VOLATILE | {"message"}}


def prompt_of(core, tokenizer):
    return tokenizer.decode(core.requests[-1].token_ids, skip_special_tokens=False)


def test_a_chat_is_a_stream_by_default(app, core):
    core.script.by_prompt = {"Hi": "Hello there."}
    found = lines(post(app, "/api/chat", model="demo:latest", messages=HI))
    assert len(found) > 3
    assert {each["model"] for each in found} == {"demo:latest"}
    message, last = joined(found)
    assert message["content"] == "Hello there."
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert found[-1]["total_duration"] > 0
    assert found[-1]["prompt_eval_count"] == len(core.requests[-1].token_ids)
    assert all(isinstance(found[-1][name], int) for name in VOLATILE - {"created_at"})


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.lists(
        st.sampled_from(["a", "b c", CALL, "<t>", "hm", "</t>", "[[weather {", "é", "\n"]),
        max_size=6,
    ).map("".join),
    tokens_per_step=st.integers(1, 5),
    limit=st.integers(0, 30),
    has_tools=st.booleans(),
)
@example(text=CALL * 2, tokens_per_step=1, limit=0, has_tools=True)
def test_a_stream_and_a_full_response_are_the_same(
    app, core, text, tokens_per_step, limit, has_tools
):
    core.script.by_prompt = {"Hi": text}
    core.tokens_per_step = tokens_per_step
    body = {"messages": HI, "tools": [TOOL] if has_tools else None}
    body["options"] = {"num_predict": limit}
    full = post(app, "/api/chat", **body, stream=False)
    stream = post(app, "/api/chat", **body)
    if full.status != 200:  # a call whose arguments are no object
        assert full.status == 500
        return
    assert joined(lines(stream)) == whole(full.json())


@pytest.mark.parametrize("stream", [False, True])
def test_half_of_a_surrogate_pair_in_a_call_is_replaced(app, core, stream):
    core.script.by_prompt = {"Hi": r'[[weather {"city": "\ud800"}]]'}
    wire = post(app, "/api/chat", messages=HI, tools=[TOOL], stream=stream)
    message, _ = joined(lines(wire)) if stream else whole(wire.json())
    assert [call["arguments"] for call in message["calls"]] == [{"city": "\ufffd"}]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_numbered_over_the_whole_response(app, core, stream):
    core.script.by_prompt = {"Hi": f"{CALL} and {CALL}"}
    wire = post(app, "/api/chat", messages=HI, tools=[TOOL], stream=stream)
    message, _ = joined(lines(wire)) if stream else whole(wire.json())
    assert [call["index"] for call in message["calls"]] == [0, 1]


def test_generate_renders_the_template_or_takes_the_prompt_raw(app, core, tokenizer):
    core.script.by_prompt = {"Hi": "<t>hm</t>Hello."}
    fields = {"prompt": "Hi", "stream": False}
    templated = post(app, "/api/generate", **fields, system="Be brief.").json()
    assert (templated["response"], templated["thinking"]) == ("Hello.", "hm")
    assert "Be brief." in prompt_of(core, tokenizer)
    raw = post(app, "/api/generate", **fields, raw=True).json()
    assert raw["response"] == "<t>hm</t>Hello."
    assert core.requests[-1].token_ids == tokenizer.encode("Hi")
    streamed = lines(post(app, "/api/generate", prompt="Hi", raw=True))
    assert "".join(each["response"] for each in streamed) == raw["response"]
    assert streamed[-1]["eval_count"] == raw["eval_count"]


def test_options_are_those_of_the_engine(app, core):
    options = {
        "temperature": 0.5, "seed": 7, "stop": ["x"], "num_predict": 9,
        "num_ctx": 4096, "repeat_last_n": 64, "num_gpu": 1, "typical_p": 1.0, "mirostat": 0,
    }  # fmt: skip
    assert post(app, "/api/chat", messages=HI, options=options, stream=False).status == 200
    request = core.requests[-1]
    assert (request.max_tokens, request.params.temperature) == (9, 0.5)
    assert (request.params.stop, request.params.seed) == (("x",), 7)


def test_messages_of_earlier_turns_are_translated(app, core, tokenizer):
    messages = [
        *HI,
        {
            "role": "assistant", "content": "", "thinking": "hm",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
        },
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]  # fmt: skip
    wire = post(app, "/api/chat", messages=messages, tools=[TOOL], stream=False)
    assert wire.status == 200, wire.body
    assert "sunny" in prompt_of(core, tokenizer)


CHAT = {
    "model": "demo",
    "format": {"type": "object"},
    "think": False,
    "keep_alive": "5m",
    "logprobs": True,
    "top_logprobs": 2,
    "options": {"temperature": 0, "num_predict": 2, "stop": ["a"], "repeat_last_n": -1},
    "messages": [
        *HI,
        {
            "role": "assistant",
            "content": "",
            "thinking": "hm",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "x",
                    "function": {"index": 0, "name": "f", "arguments": {"a": 1}},
                }
            ],
        },
        {"role": "tool", "tool_name": "f", "content": "3", "images": []},
    ],
}
GENERATE = {"prompt": "Hi", "system": "s", "raw": False, "options": {"num_predict": 2}}


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whatever_is_sent_is_answered_or_refused(app, path, body, data):
    wire = post(app, path, **data.draw(changed_anywhere(body)))
    assert wire.status in (200, 400, 404)
    assert wire.status == 200 or set(wire.json()) == {"error"}


@pytest.mark.parametrize("calls", [5, True, 1.5, "x", {}, [5], [{"function": 5}], [{}]])
def test_calls_of_the_wrong_type_are_refused(app, calls):
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    wire = post(app, "/api/chat", messages=[*HI, message])
    assert wire.status == 400
    assert wire.json()["error"].startswith("messages[1].tool_calls")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"x": 1}, "messages[1].x"),
        ({"tool_calls": [{"x": 1, "function": {"name": "f"}}]}, "messages[1].tool_calls[0].x"),
        (
            {"tool_calls": [{"function": {"name": "f", "x": 1}}]},
            "messages[1].tool_calls[0].function.x",
        ),
    ],
)
def test_a_field_of_a_message_that_does_not_exist_is_refused_unless_this_is_lenient(
    frontend, fields, path
):
    messages = [*HI, {"role": "assistant", "content": ""} | fields]
    for is_lenient, status in ((True, 200), (False, 400)):
        app = create_app(frontend, ServerSettings(lenient_fields=is_lenient), list)
        wire = post(app, "/api/chat", messages=messages, stream=False)
        assert wire.status == status
    assert repr(path) in wire.json()["error"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optoins": {}}, "did you mean 'options'"),
        ({"options": {"temprature": 1}}, "'options.temprature'; did you mean 'temperature'"),
        ({"temperature": 1}, "temperature is not supported; send it in options"),
        ({"options": {"num_predict": 2**40}}, "options.num_predict must be"),
        ({"options": {"temperature": -1}}, "options.temperature must be"),
        ({"options": {"top_p": 7}}, "options.top_p must be"),
        ({"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, "repeat_last_n must be -1"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z is supported only as 1"),
        ({"options": {"mirostat": 2}}, "no sampler in use reads options.mirostat"),
        ({"options": []}, "options"),
        ({"format": "yaml"}, 'format must be "json"'),
        ({"think": "very"}, "think must be"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"template": "x"}, "template is not supported"),
        ({"context": [1]}, "context is not supported"),
        ({"truncate": True}, "truncate is not supported"),
        ({"images": ["aGk="]}, "images is not supported"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images is not"),
        ({"messages": [{"role": "user", "contnet": "x"}]}, "did you mean 'content'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "owl", "content": "x"}]}, "role must be one of"),
        ({"tools": [{"type": "function", "function": {"nam": "x"}}]}, "tools[0]"),
        ({"model": "dmo"}, "did you mean 'demo'"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
    ],
)
@pytest.mark.parametrize("stream", [False, None])
def test_what_is_wrong_is_refused_by_name_in_ollamas_shape(app, fields, words, stream):
    refused = post(app, "/api/chat", **{"messages": HI, "stream": stream} | fields)
    assert refused.status == (404 if "model" in fields else 400)
    found = refused.json()
    assert set(found) == {"error"}
    assert words in found["error"]


EMPTY = [("/api/chat", {"messages": []}), ("/api/chat", {}), ("/api/generate", {"prompt": ""})]
each_empty = pytest.mark.parametrize(("path", "content"), EMPTY)


@pytest.mark.parametrize(
    ("keep_alive", "reason"),
    [
        (None, "load"), ("5m", "load"), (-1, "load"), (False, "load"), ("", "load"),
        (0, "unload"), (0.0, "unload"), ("0", "unload"), ("0s", "unload"), ("0h0m0.0s", "unload"),
    ],
)  # fmt: skip
@each_empty
def test_without_a_prompt_a_model_is_loaded_or_unloaded(
    app, core, path, content, keep_alive, reason
):
    found = post(app, path, model="demo", keep_alive=keep_alive, **content).json()
    assert (found["done"], found["done_reason"]) == (True, reason)
    assert not core.requests


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "dmo"}, "did you mean 'demo'"),
        ({"format": "xml"}, "format must be"),
        ({"think": "bogus"}, "think must be"),
        ({"options": {"tfs_z": 3}}, "options.tfs_z"),
        ({"options": {"temperature": -1}}, "options.temperature must be"),
        ({"options": {"mirostat": 2}}, "no sampler in use reads options.mirostat"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
    ],
)
@each_empty
def test_without_a_prompt_the_other_fields_are_checked(app, path, content, fields, words):
    refused = post(app, path, **content, **fields)
    assert refused.status == (404 if "model" in fields else 400)
    assert words in refused.json()["error"]


def test_without_messages_the_tools_are_checked(app):
    refused = post(app, "/api/chat", tools=[TOOL, TOOL])
    assert (refused.status, "twice" in refused.json()["error"]) == (400, True)


def test_thinking_is_left_out_when_it_is_not_asked_for(app, core):
    core.script.by_prompt = {"Hi": "<t>hm</t>Hello."}
    shown = post(app, "/api/chat", messages=HI, stream=False, think=True).json()["message"]
    hidden = post(app, "/api/chat", messages=HI, stream=False, think=False).json()["message"]
    assert (shown["thinking"], shown["content"]) == ("hm", "Hello.")
    assert hidden == {"role": "assistant", "content": "Hello."}


def test_log_probabilities_are_in_each_line(app):
    fields = {"messages": HI, "logprobs": True, "top_logprobs": 2}
    full = post(app, "/api/chat", **fields, stream=False).json()["logprobs"]
    streamed = [
        e for line in lines(post(app, "/api/chat", **fields)) for e in line.get("logprobs", ())
    ]
    assert [each["token"] for each in streamed] == [each["token"] for each in full]
    assert {len(each["top_logprobs"]) for each in full} == {2}


FORM = "application/x-www-form-urlencoded"
BODY = json.dumps({"messages": HI, "stream": False}).encode()


@pytest.mark.parametrize("content_type", [FORM, "text/plain", "", None])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8000"}, 415),
        ({"sec-fetch-site": "cross-site"}, 415),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"content-encoding": "gzip"}, 415),
        ({"host": "evil.example"}, 403),
    ],
)
def test_any_content_type_is_json_unless_a_browser_sends_it(app, content_type, headers, status):
    """`curl -d`, as in Ollama's documentation, sends a form; a page can send one, too."""
    given = headers | ({} if content_type is None else {"content-type": content_type})
    wire = asyncio.run(call(app, Wire(BODY), scope_of("/api/chat", headers=given)))
    assert wire.status == status
    assert status == 200 or set(wire.json()) == {"error"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apix", "/v1/messages"])
def test_other_routes_take_json_alone(app, path):
    wire = asyncio.run(call(app, Wire(BODY), scope_of(path, headers={"content-type": FORM})))
    assert wire.status in (404, 415)
    assert wire.status == 415 or path == "/apix"


def test_a_stream_that_breaks_ends_with_an_error_line(app, core):
    core.script.by_prompt = {"Hi": ("Hello", ErrorReport("RuntimeError", "boom"))}
    last = lines(post(app, "/api/chat", messages=HI))[-1]
    assert set(last) == {"error"}
