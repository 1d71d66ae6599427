"""Calls are read where special tokens mark them, and users never see the markers."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from openai import OpenAI
from server_parts import start_server, stop_servers

import quire_demo
from quire import LLM, AsyncEngine, SamplingParams

CHECKPOINT = Path(quire_demo.__file__).parent / "checkpoint"
MARKERS = ("<tool_call>", "</tool_call>")
QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
GREEDY = SamplingParams(max_tokens=60, temperature=0)


def weather(**fields):
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }
    function = {"name": "get_weather", "description": "Weather of a city", "parameters": parameters}
    return {"type": "function", "function": function | fields}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a copy of the demo model whose markers of calls are special tokens."""
    folder = tmp_path_factory.mktemp("special") / "model"
    shutil.copytree(CHECKPOINT, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for token in tokenizer["added_tokens"]:
        token["special"] = token["special"] or token["content"] in MARKERS
    path.write_text(json.dumps(tokenizer))
    return str(folder)


def expected_calls(tools):
    """Return what the demo model itself answers, whose markers are ordinary tokens."""
    with LLM("demo") as llm:
        return calls_of(llm.chat(QUESTION, GREEDY, tools=tools)[0])


def calls_of(result):
    return [(call.name, call.arguments) for call in result.outputs[0].tool_calls]


def test_a_call_between_special_tokens_is_read(folder):
    tools = [weather()]
    with LLM(folder) as llm:
        result = llm.chat(QUESTION, GREEDY, tools=tools)[0]
        plain = llm.chat(QUESTION, GREEDY)[0]
        shown = SamplingParams(max_tokens=60, temperature=0, skip_special_tokens=False)
        kept = llm.chat(QUESTION, shown, tools=tools)[0]
    assert calls_of(result) == calls_of(kept) == expected_calls(tools) != []
    assert result.outputs[0].text == ""
    assert not any(marker in plain.outputs[0].text for marker in MARKERS)


@pytest.fixture(scope="module")
def server(folder):
    engine = AsyncEngine(folder, max_model_len=512)
    served = start_server(None, engine.frontend)
    yield served
    stop_servers([served])
    asyncio.run(engine.shutdown())


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [weather()]},
        {"tools": [weather(strict=True)]},
        {"tools": [weather()], "tool_choice": "required"},
        {"tools": [weather()], "parallel_tool_calls": False},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_calls_over_the_server_are_read_and_forced_by_special_tokens(
    server, folder, fields, stream
):
    options = fields | {"model": folder, "max_tokens": 60, "temperature": 0}
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        completions = client.chat.completions
        if stream:
            with completions.stream(messages=QUESTION, **options) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = completions.create(messages=QUESTION, **options).choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert not message.content
