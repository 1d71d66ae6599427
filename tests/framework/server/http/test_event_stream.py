"""Streams over a wire: when headers leave, silences, and clients that go away."""

import asyncio
import json
import time

import httpx
import pytest
from asgi_parts import Wire

from quire.errors import OverloadedError
from quire.server.http.disconnect import run_while_connected
from quire.server.http.event_stream import EventStream

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def run(stream, wire):
    return asyncio.wait_for(stream({"type": "http", "path": "/"}, wire.receive, wire.send), 10)


def test_events_are_data_lines_and_done_is_the_last():
    async def events():
        yield b'{"a":1}'
        yield b'{"a":2}'

    async def main():
        wire = Wire()
        await run(EventStream(events(), "req-1"), wire)
        assert wire.body == b'data: {"a":1}\n\ndata: {"a":2}\n\ndata: [DONE]\n\n'
        headers = dict(wire.sent[0]["headers"])
        assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert b"content-length" not in headers
        assert [message["more_body"] for message in wire.sent[1:]] == [True, True, False]

    asyncio.run(main())


def test_an_error_before_the_first_event_has_a_status():
    async def events():
        raise OverloadedError("full")
        yield b""

    async def main():
        wire = Wire()
        await run(EventStream(events(), "req-1"), wire)
        assert wire.status == 503
        assert wire.error["code"] == "overloaded"

    asyncio.run(main())


def test_an_error_after_it_is_an_event():
    async def events():
        yield b"{}"
        raise ValueError("a secret")

    async def main():
        wire = Wire()
        await run(EventStream(events(), "req-1"), wire)
        first, error, done, end = wire.body.decode().split("\n\n")
        assert (first, done, end) == ("data: {}", "data: [DONE]", "")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "internal_error"
        assert b"secret" not in wire.body

    asyncio.run(main())


def test_long_silences_are_broken_by_comments():
    async def events():
        await asyncio.sleep(0.25)
        yield b"{}"
        await asyncio.sleep(0.25)
        yield b"{}"

    async def main():
        wire = Wire()
        await run(EventStream(events(), "req-1", keep_alive_s=0.1), wire)
        assert wire.body.count(b": keep-alive\n\n") == 4
        assert wire.body.startswith(b": keep-alive")
        assert wire.status == 200
        assert wire.num_responses == 1

    asyncio.run(main())


def test_a_client_that_goes_away_closes_the_generator():
    closed = []

    async def events():
        try:
            yield b"{}"
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def main():
        wire = Wire()
        asyncio.get_running_loop().call_later(0.05, wire.gone.set)
        await run(EventStream(events(), "req-1"), wire)
        assert closed == [True]
        assert wire.sent[-1]["more_body"]  # no end is sent to a client that is gone

    asyncio.run(main())


def test_work_that_ends_first_leaves_nothing_running():
    async def work():
        return 5

    async def main():
        assert await run_while_connected(work(), Wire().receive, {}) == 5
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_disconnect_aborts_all_its_requests(served, wait_for, path, stream, n):
    served.core.step_s = 0.02
    served.texts.by_prompt = {"Hi": "word " * 400}
    body = {"stream": stream, "n": n, "max_tokens": 400}
    body |= CHAT if path == "chat/completions" else {"prompt": "Hi"}
    with httpx.Client(timeout=httpx.Timeout(20, read=0.3)) as client:
        if stream:
            with client.stream("POST", f"{served.url}/v1/{path}", json=body) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{served.url}/v1/{path}", json=body)
    start = time.monotonic()
    assert wait_for(lambda: not served.core.running)
    assert time.monotonic() - start < 0.3
    assert len(served.core.aborted) == n


def test_a_disconnect_of_several_prompts_aborts_them_all(served, wait_for):
    served.core.step_s = 0.02
    served.texts.by_prompt = {"Hi": "word " * 400}
    body = {"stream": True, "prompt": ["Hi", "Hi there"], "max_tokens": 400}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    assert wait_for(lambda: not served.core.running)
    assert len(served.core.aborted) == 2


def test_a_normal_end_aborts_nothing(served, client):
    client.chat.completions.create(model="demo", n=2, **CHAT)
    list(client.chat.completions.create(model="demo", stream=True, **CHAT))
    time.sleep(0.1)
    assert served.core.aborted == []


def test_sixteen_streams_at_once_are_each_whole(served):
    served.texts.by_prompt = {f"n{i}-": f"answer number {i} " * 3 for i in range(16)}

    async def one(client, i):
        body = {"messages": [{"role": "user", "content": f"n{i}-"}], "stream": True}
        response = await client.post(f"{served.url}/v1/chat/completions", json=body)
        events = [json.loads(e[6:]) for e in response.text.split("\n\n")[:-2]]
        return "".join(e["choices"][0]["delta"].get("content", "") for e in events)

    async def main():
        async with httpx.AsyncClient(timeout=20) as client:
            return await asyncio.gather(*(one(client, i) for i in range(16)))

    assert asyncio.run(main()) == [f"answer number {i} " * 3 for i in range(16)]
