"""Prompt log probabilities of all requests together are bounded."""

import json
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from quire.errors import InvalidRequestError, OverloadedError
from quire.server import app
from quire.server.http.logprob_budget import MAX_IN_FLIGHT, MAX_PER_RESPONSE, LogprobBudget

PROMPT = [300] * 97
NUM_PROMPTS = 70  # of 2,037 candidates each: 9 MB of JSON, more than a connection's buffers take
LARGE = {"prompt": [PROMPT] * NUM_PROMPTS, "max_tokens": 1, "prompt_logprobs": 20}
SMALL = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 20}


@pytest.fixture(scope="module")
def budget():
    """Room for two large responses and a small one."""
    return LogprobBudget((2 * NUM_PROMPTS + 1) * len(PROMPT) * (20 + 1))


@pytest.fixture(scope="module")
def module_server(serve, budget):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.LogprobBudget, "share", lambda num: budget)
        return serve()


def test_what_is_released_can_be_reserved_again():
    budget = LogprobBudget()
    reservations = [budget.reserve(MAX_PER_RESPONSE // 2, 2) for _ in range(2)]
    assert budget.num_free == 0
    with pytest.raises(OverloadedError, match=f"hold {MAX_IN_FLIGHT} log probabilities"):
        budget.reserve(1, 1)
    reservations[0].release()
    reservations[0].release()
    assert budget.num_free == MAX_PER_RESPONSE
    assert budget.reserve(1, 1).num == 1


def test_too_many_for_one_response_are_a_fault_of_the_request():
    with pytest.raises(InvalidRequestError, match="too many for one response") as caught:
        LogprobBudget().reserve(MAX_PER_RESPONSE, 2)
    assert caught.value.param == "prompt_logprobs"


def test_the_largest_response_and_the_last_of_the_budget_are_reserved():
    budget = LogprobBudget(MAX_PER_RESPONSE + 3)
    assert budget.reserve(MAX_PER_RESPONSE, 1).num == MAX_PER_RESPONSE
    with pytest.raises(OverloadedError, match="would add 4"):
        budget.reserve(2, 2)
    reservation = budget.reserve(3, 1)
    assert budget.num_free == 0
    reservation.release()
    reservation.release()
    assert budget.num_free == 3
    with pytest.raises(InvalidRequestError, match="too many for one response"):
        budget.reserve(MAX_PER_RESPONSE + 1, 1)
    assert budget.num_free == 3


def reader_of_nothing(url):
    """Send a large request; return the connection, which is not read."""
    address = urlsplit(url)
    body = json.dumps(LARGE).encode()
    connection = socket.create_connection((address.hostname, address.port))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    return connection


def ask(served, body):
    return httpx.post(f"{served.url}/v1/completions", json=body, timeout=30)


def test_clients_that_read_nothing_hold_the_budget_until_they_go(served, wait_for):
    with ExitStack() as connections:
        for _ in range(2):
            connections.enter_context(reader_of_nothing(served.url))
        num_requests = 2 * NUM_PROMPTS
        assert wait_for(lambda: len(served.core.requests) == num_requests, 20)
        assert wait_for(lambda: not served.core.has_work(), 20)
        refused = ask(served, LARGE)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
        assert "retry-after" in refused.headers
        assert ask(served, SMALL).status_code == 200
        assert ask(served, {"prompt": "x", "max_tokens": 1}).status_code == 200
    assert wait_for(lambda: ask(served, LARGE).status_code == 200, 20)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"prompt_logprobs": 20}, {"echo": True, "logprobs": 20}])
def test_every_end_of_a_response_releases_what_it_held(served, budget, wait_for, stream, fields):
    served.core.prompt_chunk = 60
    num_free = budget.num_free
    for num_prompts in (1, 3):
        prompts = {"prompt": [PROMPT] * num_prompts, "max_tokens": 1, "stream": stream}
        response = ask(served, prompts | fields)
        assert response.status_code == 200
        if stream:
            *_, last, done = filter(None, response.text.splitlines())
            assert done == "data: [DONE]"
            assert '"finish_reason":"length"' in last
        else:
            assert response.json()["choices"][-1]["finish_reason"] == "length"
        assert wait_for(lambda: budget.num_free == num_free)
