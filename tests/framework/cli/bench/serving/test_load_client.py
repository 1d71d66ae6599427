"""The client of a load, against a server that answers by a script."""

import asyncio

import pytest
from scripted_server import scripted_server, streamed, text_events, whole

from quire.cli.bench.serving.load_client import LoadClient, LoadTarget
from quire.cli.bench.serving.outcome import Outcome
from quire.cli.bench.serving.prompts import LoadRequest
from quire.errors import BenchmarkError, UsageError

REQUEST = LoadRequest([1, 2, 3], 5)


def answers(*replies):
    """Answer with one reply after another."""
    left = iter(replies)
    return lambda *_: next(left)


def completed(*replies, request=REQUEST, delay_s=0.0, **target):
    """Send a request for each reply, one after another; return their outcomes and the server."""

    async def run():
        async with scripted_server(answers(*replies), delay_s) as server:
            client = LoadClient(
                LoadTarget(**{"url": server.url, "endpoint": "completions"} | target)
            )
            outcomes = [Outcome() for _ in replies]
            for outcome in outcomes:
                await client.complete(request, outcome)
            client.close()
            return outcomes, server

    return asyncio.run(run())


def test_a_completion_has_its_times_and_tokens():
    (outcome,), server = completed(streamed(*text_events("a", "b", "c", usage=(3, 4))))
    assert outcome.error == ""
    assert len(outcome.chunks_s) == 3
    assert outcome.sent_s <= outcome.chunks_s[0] <= outcome.end_s
    assert (outcome.num_prompt_tokens, outcome.num_output_tokens) == (3, 4)
    ((first, headers, body),) = server.requests
    assert first == "POST /v1/completions HTTP/1.1"
    assert "authorization" not in headers
    assert body == {
        "model": "",
        "prompt": [1, 2, 3],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_conversation_goes_to_the_chat_route():
    messages = [{"role": "user", "content": "hi"}]
    events = [{"choices": [{"delta": {"content": "yes"}}]}]
    _, server = completed(
        streamed(*events), request=LoadRequest(messages, 5), endpoint="chat", model="m"
    )
    ((first, _, body),) = server.requests
    assert first.startswith("POST /v1/chat/completions ")
    assert (body["messages"], body["max_completion_tokens"], body["model"]) == (messages, 5, "m")


def test_more_fields_and_the_key_are_sent():
    _, server = completed(
        streamed(*text_events("a")), api_key="k", fields={"temperature": 0.5, "ignore_eos": True}
    )
    ((_, headers, body),) = server.requests
    assert headers["authorization"] == "bearer k"
    assert (body["temperature"], body["ignore_eos"]) == (0.5, True)


def test_the_key_is_not_shown():
    assert "secret" not in repr(LoadTarget("http://h", "chat", api_key="secret"))


def test_a_connection_is_used_again():
    reply = streamed(*text_events("a"))
    outcomes, server = completed(reply, reply, whole(503, {}), reply)
    assert [outcome.error for outcome in outcomes] == ["", "", "503", ""]
    assert server.num_connections == 1


def test_a_connection_that_the_server_closes_is_not_used_again():
    reply = streamed(*text_events("a"))
    outcomes, server = completed(whole(429, {}, close=True), reply)
    assert [outcome.error for outcome in outcomes] == ["429", ""]
    assert server.num_connections == 2


def test_a_refused_request_has_its_status_and_the_servers_words():
    (outcome,), _ = completed(whole(400, {"error": {"message": "too long"}}))
    assert outcome.error == "400"
    assert "too long" in outcome.detail


def test_without_usage_the_parts_are_counted():
    (outcome,), _ = completed(streamed(*text_events("a", "b")[:-1]))
    assert not outcome.is_counted
    assert outcome.num_output_tokens == 2


def test_a_stream_that_breaks_off_is_an_error():
    reply = streamed(*text_events("a"))
    (outcome,), _ = completed(reply.replace(b"e\r\ndata: [DONE]\n\n\r\n", b""))
    assert outcome.error == "incomplete stream"


def test_a_connection_that_ends_is_an_error():
    (outcome,), server = completed(None)
    assert outcome.error == "connection"
    assert len(server.requests) == 1, "a request that was received is not sent twice"


def test_what_is_no_http_is_an_error():
    (outcome,), _ = completed(b"nonsense\r\n\r\n")
    assert outcome.error == "connection"
    assert "cannot be read" in outcome.detail


def test_what_is_no_event_is_an_error():
    (outcome,), _ = completed(streamed({"choices": 3}))
    assert outcome.error == "connection"


def test_a_request_may_take_its_time_and_no_longer():
    (outcome,), _ = completed(streamed(), delay_s=30.0, timeout_s=0.2)
    assert outcome.error == "timeout"
    assert outcome.e2el_s > 0


def first_model(reply, url=None):
    async def run():
        async with scripted_server(answers(reply)) as server:
            client = LoadClient(LoadTarget(url or server.url + "/v1", "chat"))
            try:
                return await client.first_model(), server.requests
            finally:
                client.close()

    return asyncio.run(run())


def test_the_first_model_of_a_server_is_found():
    name, requests = first_model(whole(200, {"data": [{"id": "a"}, {"id": "b"}]}))
    assert name == "a"
    assert requests[0][0] == "GET /v1/models HTTP/1.1"


def test_a_server_that_lists_no_model_is_quoted():
    with pytest.raises(BenchmarkError, match=r"answered with 401 '\{\"error\": \"key\"\}'"):
        first_model(whole(401, {"error": "key"}))


def test_no_server_is_named_by_its_address():
    with pytest.raises(BenchmarkError, match=r"there is no server at http://127.0.0.1:1: "):
        first_model(None, "http://127.0.0.1:1")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h", "http://"])
def test_what_is_no_address_is_wrong_usage(url):
    with pytest.raises(UsageError, match="is no address of a server"):
        LoadTarget(url, "chat")
