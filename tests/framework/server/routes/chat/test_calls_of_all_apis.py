"""One completion over all APIs: a stream adds up to the full response, and all have its calls."""

import asyncio
import json
from functools import cache

import pytest
from asgi_parts import post
from batch_parts import run_to_end
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_core import ScriptedCore
from server_parts import SOURCE, Texts, make_frontend

from quire.config import ServerSettings
from quire.frontend.chat.call_arguments import arguments_object
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers, ParserChoice
from quire.interfaces.reasoning import ReasoningParserCapabilities
from quire.server.app import create_app
from quire.server.routes.chat.complete_members import complete_members
from quire_reasoning_parsers import families as reasoning_families
from quire_tool_parsers import families as tool_families
from quire_tool_parsers.family_table import capabilities_of, read_table

MAX_MODEL_LEN = 8000
HI = [{"role": "user", "content": "Hi"}]
NAMES = ("f", "get_it")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
LISTS = {"type": "object", "properties": {"n": {"type": "array"}}}
FUNCTIONS = [{"name": name, "parameters": SCHEMA} for name in NAMES]


def hermes(name, arguments):
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def tagged(name, arguments):
    values = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def pairs(name, arguments):
    values = "".join(
        f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


WRITTEN = {"hermes": hermes, "qwen3_coder": tagged, "glm45": pairs}
ARGUMENTS = st.sampled_from(
    [{}, {"a": "x"}, {"a": 'Köln 🌧 "]}" </b>', "n": 17}, {"a": " two\nlines ", "n": -3}]
)


@st.composite
def completions(draw, family):
    """Return a completion with text, reasoning, calls, and calls that break off."""
    calls = st.builds(WRITTEN[family], st.sampled_from(NAMES), ARGUMENTS)
    cut = st.builds(lambda call, at: call[:at], calls, st.integers(1, 60))
    spoilt = st.sampled_from([
        "<tool_call>\n", "</tool_call>", "<tool_call>\n{nonsense}\n</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": {"a": nope}}\n</tool_call>',
    ])  # fmt: skip
    texts = st.sampled_from(["Sure. ", "\n", "é🌧", "<", "</think>", "a < b", " "])
    parts = draw(st.lists(st.one_of(texts, calls, calls, spoilt), max_size=5))
    head = draw(st.sampled_from(["", "", "<think>\nhm\n</think>\n\n", "<think>hm", "<thi"]))
    tail = draw(st.one_of(st.just(""), cut))
    return head + "".join(parts) + tail


@pytest.fixture(scope="module")
def ask(tokenizer):
    """Post to a server whose model writes a text; return the wire."""
    made = []

    @cache
    def app_of(family):
        core = ScriptedCore(Texts(tokenizer))
        tools = ParserChoice(
            getattr(tool_families, family), SOURCE, capabilities_of(read_table()[family])
        )
        thinking = ParserChoice(reasoning_families.qwen3, SOURCE, ReasoningParserCapabilities())
        parsers = CompletionParsers(thinking, tools)
        made.append(make_frontend(tokenizer, core, parsers, max_model_len=MAX_MODEL_LEN))
        return create_app(made[-1], ServerSettings(), list), core

    def run(family, path, text, tokens_per_step, **fields):
        app, core = app_of(family)
        core.script.by_prompt, core.tokens_per_step = {"Hi": text}, tokens_per_step
        wire = post(app, path, **fields)
        assert wire.status == 200, wire.body
        return wire

    yield run
    for frontend in made:
        asyncio.run(frontend.shutdown())


def chat_calls(message):
    return [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
    ]


def joined_chat(chunks):
    """Put a stream together as clients do, and check what they rely on."""
    message, calls, ends = {"content": "", "reasoning": ""}, [], []
    for number, chunk in enumerate(chunks):
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert ("role" in delta) == (number == 0)
        assert delta or choice["finish_reason"] is not None
        assert not ends
        for name in ("content", "reasoning"):
            message[name] += delta.get(name, "")
        indices = [piece["index"] for piece in delta.get("tool_calls", ())]
        assert len(set(indices)) == len(indices)
        for piece in delta.get("tool_calls", ()):
            _add_piece(calls, piece)
        ends += [choice["finish_reason"]] if choice["finish_reason"] else []
    (end,) = ends
    return message, calls, end


def _add_piece(calls, piece):
    if piece["index"] == len(calls):
        assert set(piece) == {"index", "id", "type", "function"}
        assert (piece["type"], bool(piece["id"])) == ("function", True)
        calls.append([piece["function"]["name"], ""])
    else:
        assert set(piece) == {"index", "function"}
        assert piece["index"] == len(calls) - 1
        assert set(piece["function"]) == {"arguments"}
    calls[-1][1] += piece["function"]["arguments"]


def is_within(some, others):
    """Whether all of some are among others, in this order."""
    rest = iter(others)
    return all(each in rest for each in some)


def events_of(wire):
    lines = wire.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def response_items(events):
    """Put the items of a response's stream together."""
    items = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        item = (
            items[event["output_index"]]
            if "output_index" in event and kind != "output_item.added"
            else None
        )
        match kind:
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "content_part.added":
                item["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                item["content"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "output_item.done":
                item["status"] = event["item"]["status"]
                assert item == event["item"]
    return items


def without_ids(items):
    return [{k: v for k, v in each.items() if k not in ("id", "call_id")} for each in items]


def message_blocks(events):
    """Put the blocks of a message together; the input of a call stays text."""
    blocks = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                block = event["content_block"]
                blocks.append(block | ({"input": ""} if "input" in block else {}))
            case "content_block_delta":
                (_, (name, piece)) = event["delta"].items()
                blocks[event["index"]][{"partial_json": "input"}.get(name, name)] += piece
    return blocks


def whole_and_cut(calls):
    """Return the calls that are whole, and the last one if it was cut."""
    num_whole = sum(arguments_object(arguments) is not None for _, arguments in calls)
    assert num_whole >= len(calls) - 1
    return calls[:num_whole], calls[num_whole:]


def text_of(blocks):
    return "".join(block["text"] for block in blocks if block["type"] == "text")


@pytest.mark.parametrize("family", list(WRITTEN))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_streams_add_up_and_all_apis_have_the_same_calls(ask, family, data):
    text = data.draw(completions(family), label="completion")
    step = data.draw(st.sampled_from([1, 2, 3, 7, 1000]), label="tokens per step")
    limit = data.draw(st.sampled_from([400, 400, 9, 30]), label="limit")
    is_parallel = data.draw(st.booleans(), label="parallel")

    nested = [{"type": "function", "function": function} for function in FUNCTIONS]
    body = {
        "messages": HI,
        "tools": nested,
        "max_tokens": limit,
        "parallel_tool_calls": is_parallel,
    }
    chat = ask(family, "/v1/chat/completions", text, step, **body).json()["choices"][0]
    stream = ask(family, "/v1/chat/completions", text, step, **body, stream=True)
    message, announced, end = joined_chat(stream.events)
    calls = chat_calls(chat["message"])
    assert message["content"] == (chat["message"]["content"] or "")
    assert message["reasoning"] == chat["message"].get("reasoning", "")
    assert end == chat["finish_reason"]
    assert (end == "tool_calls") <= bool(calls)
    assert is_within(calls, [tuple(call) for call in announced])
    whole, cut = whole_and_cut(calls)
    assert not cut or (end == "length" and announced[-1] == [*cut[0]])
    assert len(calls) <= 1 or is_parallel

    flat = [{"type": "function", **function} for function in FUNCTIONS]
    body = {
        "input": "Hi",
        "tools": flat,
        "max_output_tokens": limit,
        "parallel_tool_calls": is_parallel,
    }
    response = ask(family, "/v1/responses", text, step, **body).json()
    events = events_of(ask(family, "/v1/responses", text, step, **body, stream=True))
    assert response_items(events) == events[-1]["response"]["output"]
    assert without_ids(events[-1]["response"]["output"]) == without_ids(response["output"])
    items = [item for item in response["output"] if item["type"] == "function_call"]
    assert whole == [(i["name"], i["arguments"]) for i in items if i["status"] == "completed"]
    if cut:
        assert cut == [(i["name"], i["arguments"]) for i in items[-1:]]
        assert items[-1]["status"] == "incomplete"

    tools = [{"name": f["name"], "input_schema": f["parameters"]} for f in FUNCTIONS]
    choice = {"type": "auto", "disable_parallel_tool_use": not is_parallel}
    body = {"messages": HI, "tools": tools, "max_tokens": limit, "tool_choice": choice}
    full = ask(family, "/v1/messages", text, step, **body).json()
    events = events_of(ask(family, "/v1/messages", text, step, **body, stream=True))
    blocks, sent = full["content"], message_blocks(events)
    used = [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    assert used == [(name, json.loads(complete_members(given))) for name, given in calls]
    assert text_of(sent) == text_of(blocks)
    begun = [(b["name"], b["input"]) for b in sent if b["type"] == "tool_use"]
    assert is_within(whole, begun)
    if cut:
        ((name, given),) = cut
        assert begun[-1][0] == name
        assert given.startswith(begun[-1][1])
        assert json.loads(complete_members(begun[-1][1])) == used[-1][1]
    assert events[-2]["delta"]["stop_reason"] == full["stop_reason"]

    if is_parallel:
        body = {"messages": HI, "tools": nested, "options": {"num_predict": limit}}
        full = ask(family, "/api/chat", text, step, **body, stream=False).json()["message"]
        sent = ask(family, "/api/chat", text, step, **body).body.decode().splitlines()
        lines = [json.loads(line)["message"] for line in sent]
        assert "".join(line["content"] for line in lines) == full["content"]
        own = [c["function"] for line in lines for c in line.get("tool_calls", ())]
        assert own == [c["function"] for c in full.get("tool_calls", ())]
        assert [(c["name"], c["arguments"]) for c in own] == used[: len(whole)]
        if cut:
            assert cut[0][0] in full["content"] + full.get("thinking", "")


@pytest.mark.parametrize("family", list(WRITTEN))
@pytest.mark.parametrize("numbers", ["9" * 5000, "-0.5, 123456789012345678901234567890"])
def test_all_apis_pass_on_numbers_of_any_digits(ask, family, numbers):
    text = WRITTEN[family]("f", {"n": "DIGITS"}).replace('"DIGITS"', "DIGITS")
    text = text.replace("DIGITS", f"[{numbers}]")
    function = {"type": "function", "function": {"name": "f", "parameters": LISTS}}
    body = {"messages": HI, "tools": [function], "max_tokens": 6000}
    chat = ask(family, "/v1/chat/completions", text, 1000, **body).json()["choices"][0]["message"]
    ((_, arguments),) = chat_calls(chat)
    assert arguments == f'{{"n": [{numbers}]}}'
    message, announced, _ = joined_chat(
        ask(family, "/v1/chat/completions", text, 1000, **body, stream=True).events
    )
    assert (message["content"], announced) == ("", [["f", arguments]])

    flat = {"type": "function", "name": "f", "parameters": LISTS}
    response = ask(
        family, "/v1/responses", text, 1000, input="Hi", tools=[flat], max_output_tokens=6000
    ).json()
    assert [item["arguments"] for item in response["output"]] == [arguments]

    tools = [{"name": "f", "input_schema": LISTS}]
    body = {"messages": HI, "tools": tools, "max_tokens": 6000}
    whole = ask(family, "/v1/messages", text, 1000, **body)
    assert f'"input":{arguments}' in whole.body.decode()
    events = events_of(ask(family, "/v1/messages", text, 1000, **body, stream=True))
    assert [block["input"] for block in message_blocks(events)] == [arguments]

    body = {"messages": HI, "tools": [function], "options": {"num_predict": 6000}}
    for is_stream in (False, True):
        wire = ask(family, "/api/chat", text, 1000, **body, stream=is_stream)
        assert f'"arguments":{arguments}' in wire.body.decode()


def test_a_batch_has_the_calls_that_the_routes_return(frontend, core, tmp_path):
    core.script.by_prompt = {"Hi": 'Sure: [[f {"a": 1}]][[run {"input": "ls"}]]'}
    custom, flat = {"type": "custom", "name": "run"}, {"type": "function", "name": "f"}
    nested = {"type": "function", "function": {"name": "f"}}
    chat_tools = [nested, {"type": "custom", "custom": {"name": "run"}}]
    bodies = {
        "/v1/chat/completions": {"messages": HI, "tools": chat_tools},
        "/v1/responses": {"input": "Hi", "tools": [flat, custom]},
    }
    lines = [
        json.dumps({"custom_id": url, "method": "POST", "url": url, "body": body})
        for url, body in bodies.items()
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    app = create_app(frontend, ServerSettings(), list)
    results = run_to_end(app, tmp_path / "in.jsonl", tmp_path / "out.jsonl", urls=[*bodies])
    assert [each["error"] for each in results] == [None, None]
    found = {each["custom_id"]: each["response"]["body"] for each in results}
    function, tool = found["/v1/chat/completions"]["choices"][0]["message"]["tool_calls"]
    assert function["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert tool["custom"] == {"name": "run", "input": "ls"}
    _, function, tool = found["/v1/responses"]["output"]
    assert (function["arguments"], tool["input"]) == ('{"a": 1}', "ls")


TOOLS_OF_CHAT = [{"type": "function", "function": each} for each in FUNCTIONS]


def warnings(caplog):
    return [each.getMessage() for each in caplog.records if "had to call" in each.getMessage()]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_forced_completion_without_a_call_is_logged_once(tokenizer, caplog, is_streamed):
    core = ScriptedCore(Texts(tokenizer))
    choice = ParserChoice(tool_families.hermes, SOURCE, capabilities_of(read_table()["hermes"]))
    frontend = make_frontend(tokenizer, core, CompletionParsers(None, choice))
    app = create_app(frontend, ServerSettings(), list)

    def complete(text, **fields):
        core.script.by_prompt = {"Hi": text}
        fields = {"messages": HI, "tools": TOOLS_OF_CHAT, "stream": is_streamed} | fields
        assert post(app, "/v1/chat/completions", **fields).status == 200
        return warnings(caplog)

    assert complete("So: no call.") == []
    assert complete(hermes("f", {}), tool_choice="required") == []
    assert complete("So: no call.", tool_choice="required", max_tokens=2) == []
    assert complete("So: no call.", tool_choice="required", stop=["no"]) == []
    assert len(complete("So: no call.", tool_choice="required")) == 1
    named = {"type": "function", "function": {"name": "f"}}
    assert len(complete("So: no call.", tool_choice=named)) == 1
    asyncio.run(frontend.shutdown())
