"""The `ollama` package speaks to a server of quire, with streams, tools, schemas and errors."""

import pytest
from server_parts import MAX_MODEL_LEN

ollama = pytest.importorskip("ollama")

HI = [{"role": "user", "content": "Hi"}]
CALL = '[[weather {"city": "Oslo"}]]'


def weather(city: str) -> str:
    """Return the weather.

    Args:
        city: Name of a city.
    """
    return f"{city}: sunny"


@pytest.fixture
def client(served):
    made = ollama.Client(host=served.url)
    yield made
    made.close()


def test_a_chat_in_full_and_as_a_stream(client, served):
    served.texts.by_prompt = {"Hi": "<t>hm</t>Hello there."}
    full = client.chat("demo", HI, think=True, options={"num_predict": 50, "temperature": 0})
    assert (full.message.content, full.message.thinking) == ("Hello there.", "hm")
    assert (full.done, full.done_reason, full.model) == (True, "stop", "demo")
    assert full.eval_count > 3
    assert full.total_duration >= full.eval_duration > 0
    parts = list(client.chat("demo:latest", HI, stream=True))
    assert "".join(part.message.content for part in parts) == full.message.content
    assert "".join(part.message.thinking or "" for part in parts) == "hm"
    assert parts[-1].eval_count == full.eval_count
    assert parts[-1].prompt_eval_count == full.prompt_eval_count


def test_tools_that_are_functions(client, served):
    served.texts.by_prompt = {"Hi": CALL, "sunny": "It is sunny."}
    found = client.chat("demo", HI, tools=[weather])
    (call,) = found.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Oslo"})
    told = {"role": "tool", "tool_name": "weather", "content": weather(**call.function.arguments)}
    last = client.chat("demo", [*HI, found.message, told], tools=[weather])
    assert last.message.content == "It is sunny."


def test_generate_in_full_and_as_a_stream(client, served):
    served.texts.by_prompt = {"Hi": "Hello there."}
    full = client.generate("demo", "Hi", system="Be brief.", keep_alive="5m")
    assert full.response == "Hello there."
    parts = client.generate("demo", "Hi", stream=True, raw=True)
    assert "".join(part.response for part in parts) == "Hello there."


def test_models(client):
    assert [each.model for each in client.list().models] == ["demo:latest", "pirate:latest"]
    (first, _) = client.ps().models
    assert (first.name, first.context_length) == ("demo:latest", MAX_MODEL_LEN)
    assert client.show("demo").capabilities == ["completion", "tools", "thinking"]


def test_errors_have_the_text_and_the_status(client):
    with pytest.raises(ollama.ResponseError, match="did you mean 'demo'") as caught:
        client.chat("dmo", HI)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="did you mean 'temperature'") as caught:
        list(client.chat("demo", HI, stream=True, options={"temprature": 1}))
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="Not Found"):
        client.embed("demo", "x")
