"""Every failure has OpenAI's shape and a status that fits, and shows no secrets."""

import json
import re

import httpx
import openai
import pytest
from openai import OpenAI

from quire.errors import (
    EngineDeadError,
    GrammarError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestFailedError,
    RequestTimeoutError,
    UnknownModelError,
)
from quire.messages import ErrorReport
from quire.server.wire.http_errors import (
    detail_of,
    error_response,
    log_failure,
    scrubbed,
    status_of,
)

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def check_shape(response):
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req-")
    assert not re.search(r"0x[0-9a-f]{6,}|Traceback|/(home|opt|usr|root)/", response.text)
    return error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequestError("n is wrong", param="n"), 400, "invalid_request"),
        (PromptTooLongError("too long"), 400, "context_length_exceeded"),
        (GrammarError("bad regex"), 400, "invalid_grammar"),
        (UnknownModelError("no such model"), 404, "model_not_found"),
        (OverloadedError("full"), 503, "overloaded"),
        (RequestTimeoutError("too slow"), 504, "request_timeout"),
        (EngineDeadError("died at 0xdeadbeef"), 503, "engine_dead"),
        (RequestFailedError("plugin x failed"), 500, "request_failed"),
        (ValueError("/opt/secret 0xdeadbeef"), 500, "internal_error"),
    ],
)
def test_each_error_has_its_status_and_code(error, status, code):
    assert status_of(error) == status
    detail = detail_of(error)
    assert detail.code == code
    assert detail.type == ("invalid_request_error" if status < 500 else "server_error")
    assert "0x" not in detail.message
    assert "/opt" not in detail.message
    assert ("retry-after" in error_response(error).headers) == (code == "overloaded")


def test_addresses_paths_and_further_lines_are_scrubbed():
    message = "failed at 0x7f3a12 in /opt/app/x.py and C:\\app\\y.py, see https://a.b/c\nTraceback"
    assert scrubbed(message) == "failed at <address> in <path> and <path>, see https://a.b/c"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/nowhere", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/livez", 405),
        ("GET", "/v1/models/unknown", 404),
        ("GET", "/v1//models", 404),
        ("GET", "/livez/", 404),
    ],
)
def test_wrong_paths_and_methods_have_the_shape(served, method, path, status):
    response = httpx.request(method, served.url + path)
    assert response.status_code == status
    check_shape(response)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"a": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "\\ud800 alone", "messages": []}',
        b'{"prompt": "\xff\xfe"}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"prompt": ' + b"[" * 70 + b"]" * 70 + b"}",
        b"[" * 100_000,
        b'{"model": 5}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_wrong_json_is_a_400(served, path, body):
    headers = {"content-type": "application/json"}
    response = httpx.post(served.url + path, content=body, headers=headers)
    assert response.status_code == 400
    check_shape(response)


def test_a_wrong_type_names_its_field(served):
    body = CHAT | {"stop": ["a", 5]}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    error = check_shape(response)
    assert error["param"] == "stop[1]"
    assert error["message"] == "stop[1]: Expected `str`, got `int`"


@pytest.mark.parametrize("name", ["n", "max_tokens", "top_k", "seed", "temperature", "min_p"])
@pytest.mark.parametrize("value", ["1", True, 2**70, -(2**70), [], {}, 1e308, -1.5])
def test_odd_numbers_are_refused_by_name(served, name, value):
    response = httpx.post(f"{served.url}/v1/chat/completions", json=CHAT | {name: value})
    assert response.status_code == 400
    assert check_shape(response)["param"] == name


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_only_plain_json_is_taken(served, headers):
    url = f"{served.url}/v1/chat/completions"
    response = httpx.post(url, content=json.dumps(CHAT), headers=headers)
    assert response.status_code == 415
    assert check_shape(response)["code"] == "unsupported_media_type"


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", **CHAT)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "demo, pirate" in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_says_when_to_come_back(served, stream):
    served.core.max_num_seqs = served.core.max_queued = 0
    body = CHAT | {"stream": stream}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert check_shape(response)["code"] == "overloaded"


@pytest.mark.parametrize("stream", [False, True])
def test_what_takes_too_long_is_a_504_that_is_not_retried(served, stream):
    late = ErrorReport("request_timeout", "the request was not over 1.5 s after its arrival")
    served.texts.by_prompt = {"Hi": ("", late)}
    with (
        OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=3) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model="demo", stream=stream, **CHAT)
    assert caught.value.status_code == 504
    assert caught.value.code == "request_timeout"
    assert "1.5 s" in caught.value.message
    assert len(served.core.requests) == 1


def test_a_stream_that_takes_too_long_ends_with_an_event(client, served):
    late = ErrorReport("request_timeout", "the request was not over 1.5 s after its arrival")
    served.texts.by_prompt = {"Hi": ("half a completion", late)}
    chunks = client.chat.completions.create(model="demo", stream=True, **CHAT)
    said = []
    with pytest.raises(openai.APIError, match=r"1\.5 s") as caught:
        said.extend(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert caught.value.code == "request_timeout"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_a_status(served, stream):
    report = ErrorReport("request_failed", "sampler failed at 0xabcdef12 in /opt/x/y.py")
    served.texts.by_prompt = {"Hi": ("", report)}
    body = CHAT | {"stream": stream}
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    assert response.status_code == 500
    error = check_shape(response)
    assert error["message"] == "sampler failed at <address> in <path>"
    assert error["code"] == "request_failed"


def test_a_failure_after_the_first_token_is_an_event_that_clients_raise(client, served):
    served.texts.by_prompt = {"Hi": ("a few words", ErrorReport("request_failed", "it broke"))}
    chunks = client.chat.completions.create(model="demo", stream=True, **CHAT)
    content = []
    with pytest.raises(openai.APIError, match="it broke"):
        content.extend(chunk.choices[0].delta.content for chunk in chunks)
    assert "".join(content) == "a few words"
    raw = httpx.post(f"{served.url}/v1/chat/completions", json=CHAT | {"stream": True}).text
    assert raw.endswith("data: [DONE]\n\n")


def test_a_grammar_that_the_engine_refuses_is_the_clients_error(client, served):
    served.texts.by_prompt = {"Hi": ("", ErrorReport("invalid_grammar", "keyword minimum"))}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="demo", **CHAT)
    assert caught.value.code == "invalid_grammar"


def test_another_request_notices_nothing(client, served):
    served.core.step_s = 0.01
    chunks = client.chat.completions.create(model="demo", stream=True, **CHAT)
    next(iter(chunks))
    url = f"{served.url}/v1/chat/completions"
    assert httpx.post(url, json={"messages": 3}).status_code == 400
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert rest == "I am a script."


def test_a_dead_engine_is_503_everywhere_but_livez_until_the_server_exits(serve):
    served = serve()
    failure = RuntimeError("a kernel at 0xdeadbeef0000 failed in /opt/secret/kernel.py")
    served.texts.by_prompt = {"": ("", failure)}
    first = httpx.post(f"{served.url}/v1/chat/completions", json=CHAT)
    second = httpx.post(f"{served.url}/v1/completions", json={"prompt": "x"})
    for response in (first, second):
        assert response.status_code == 503
        assert check_shape(response)["code"] == "engine_dead"
        assert "retry-after" not in response.headers
    assert httpx.get(f"{served.url}/readyz").status_code == 503
    assert httpx.get(f"{served.url}/livez").status_code == 200
    served.thread.join(2)
    assert not served.thread.is_alive()
    assert "a kernel at 0xdeadbeef0000 failed" in str(served.server.stopping.engine_death)


def test_stacks_are_neither_for_clients_nor_repeated_for_each_request(caplog):
    error = EngineDeadError("step 4 did not complete\nworker 1: its stack is\nFile a")
    assert "File" not in detail_of(error).message
    log_failure(error, "r1")
    assert caplog.messages == ["request r1 failed: step 4 did not complete"]
