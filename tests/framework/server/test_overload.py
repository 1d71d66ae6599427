"""A flood: what fits the queue is served, the rest gets 503 with a measured time to come back."""

import asyncio
import math
from collections import Counter

import httpx
import pytest
from asgi_parts import JSON, Wire, scope_of
from long_queue import long_queue
from scripted_core import ScriptedCore
from server_parts import Texts, make_frontend, start_server, stop_servers

from quire.config import ServerSettings
from quire.frontend.dispatch.queue_gate import MARGIN, QueueLimits
from quire.server.app import create_app

NUM_REQUESTS = 250
RUNNING, QUEUED = 4, 20
FULL = QueueLimits(max_running=0, max_queued=0)


@pytest.fixture
def flooded(tokenizer):
    """A server whose engine runs 4 requests at a time, for 0.2 s each."""
    core = ScriptedCore(Texts(tokenizer), step_s=0.02, max_num_seqs=RUNNING, max_queued=QUEUED)
    core.script.by_prompt = {"": "word " * 9}
    frontend = make_frontend(tokenizer, core, queue_limits=QueueLimits(RUNNING, QUEUED))
    served = start_server(core, frontend)
    yield served
    stop_servers([served])


async def flood(url, body, num=NUM_REQUESTS):
    """Send requests at once, each with a connection of its own; return all responses."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        posts = [client.post("/v1/completions", json=body) for _ in range(num)]
        return await asyncio.gather(*posts)


def test_ten_times_the_load_is_refused_without_a_reset(flooded):
    core = flooded.core
    asyncio.run(flood(flooded.url, {"prompt": "x", "max_tokens": 10}, 24))  # measures the rate
    found = asyncio.run(flood(flooded.url, {"prompt": "x", "max_tokens": 10}))
    statuses = Counter(response.status_code for response in found)
    assert set(statuses) == {200, 503}
    assert RUNNING + QUEUED <= statuses[200] == len(core.requests) - 24
    for response in found:
        if response.status_code == 503:
            assert response.json()["error"]["code"] == "overloaded"
            assert 1 <= int(response.headers["retry-after"]) <= 60
    measured = [r for r in found if "retry-after-ms" in r.headers]
    assert len(measured) == statuses[503], "all say what was measured"
    assert httpx.get(f"{flooded.url}/livez").status_code == 200


def test_a_request_that_cannot_be_served_in_its_time_is_refused_at_once(flooded, wait_for):
    async def main():
        body = {"prompt": "x", "max_tokens": 10}
        filling = asyncio.create_task(flood(flooded.url, body, RUNNING + QUEUED))
        backlog = flooded.frontend.dispatch.backlog
        while backlog.wait_s < 0.3:
            await asyncio.sleep(0.01)
        num_before = len(flooded.core.requests)
        (refused,) = await flood(flooded.url, body | {"timeout_s": 0.05}, 1)
        assert len(flooded.core.requests) == num_before
        await filling
        return refused

    refused = asyncio.run(asyncio.wait_for(main(), 60))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert "this request has 0.0" in refused.json()["error"]["message"]
    wait_ms = int(refused.headers["retry-after-ms"])
    assert int(refused.headers["retry-after"]) == max(1, math.ceil(wait_ms / 1000))


def test_a_full_queue_refuses_before_the_body_is_read(tokenizer):
    frontend = make_frontend(tokenizer, ScriptedCore(Texts(tokenizer)), queue_limits=FULL)
    app = create_app(frontend, ServerSettings(), list)

    async def receive():
        raise AssertionError("the body is not read")

    async def main():
        wire = Wire()
        await app(scope_of("/v1/completions", headers=JSON), receive, wire.send)
        await frontend.shutdown()
        return wire

    wire = asyncio.run(main())
    assert (wire.status, wire.error["code"]) == (503, "overloaded")
    assert "connection" not in wire.headers, "the client may use it for its next try"


KEYS = """
keys:
- {name: free, key: sk-free}
- {name: late, key: sk-late, priority: 5}
- {name: first, key: sk-first, priority: -5}
"""


@pytest.fixture
def queued(tokenizer, tmp_path):
    """Return a function that sends a request to a server with a long queue."""
    file = tmp_path / "keys"
    file.write_text(KEYS)
    file.chmod(0o600)
    running = []

    def send(path, body, key="sk-free", max_wait_s=None, timeout_s=None):
        core = ScriptedCore(Texts(tokenizer))
        frontend = make_frontend(tokenizer, core)
        backlog = frontend.dispatch.backlog = long_queue(max_wait_s)
        running.append(start_server(core, frontend, api_key_file=str(file)))
        timeout = {} if timeout_s is None else {"timeout_s": MARGIN * (backlog.wait_s + timeout_s)}
        headers = {"authorization": f"Bearer {key}"}
        url = f"{running[-1].url}/v1/{path}"
        return httpx.post(url, json=body | timeout, headers=headers, timeout=30).status_code

    yield send
    stop_servers(running)


@pytest.mark.parametrize(
    ("key", "given", "status"),
    [
        ("sk-free", {}, 503),
        ("sk-free", {"priority": -1}, 200),
        ("sk-free", {"priority": 1}, 503),
        ("sk-late", {"priority": -1}, 503),
        ("sk-first", {}, 200),
        ("sk-first", {"priority": 3}, 503),
    ],
)
def test_a_long_queue_refuses_by_the_priority_that_a_request_has(queued, key, given, status):
    body = {"prompt": "x", "max_tokens": 1}
    assert queued("completions", body | given, key, max_wait_s=10.0) == status


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("completions", {"prompt": "x"}, 200),
        ("completions", {"prompt": "x", "max_tokens": 50}, 503),
        ("chat/completions", {"max_completion_tokens": 5}, 200),
        ("chat/completions", {"max_tokens": 50, "max_completion_tokens": 5}, 200),
        ("chat/completions", {}, 503),
    ],
)
def test_the_time_of_a_completion_is_that_of_the_tokens_it_may_have(queued, path, given, status):
    messages = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {}
    assert queued(path, messages | given, timeout_s=25.0) == status
