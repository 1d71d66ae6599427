"""A stream over a wire that is slow, silent or stuck; the clock of silences is the test's own."""

import asyncio
from types import SimpleNamespace

import pytest
from asgi_parts import Wire, is_last

from quire.errors import OverloadedError, RequestFailedError
from quire.server.http import event_stream as sse
from quire.server.http.event_stream import EventStream

KEEP_ALIVE_S = 0.01


class Clock:
    """The clock of `sse`; it stands still unless a test sets it."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s


class SlowEnd(Wire):
    """A client that takes long over the last message."""

    async def send(self, message):
        if is_last(message):
            await asyncio.sleep(6 * KEEP_ALIVE_S)
        await super().send(message)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(sse, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


async def run(events, wire, **options):
    stream = EventStream(events, "req-1", **options)
    await asyncio.wait_for(stream({"type": "http", "path": "/"}, wire.receive, wire.send), 10)
    return wire


async def silence(clock, wire):
    """Say nothing until a comment has left."""
    await asyncio.sleep(0)
    clock.now_s += KEEP_ALIVE_S
    while len(wire.sent) < 2:
        await asyncio.sleep(KEEP_ALIVE_S)


def test_events_that_come_often_enough_are_all_there_is(clock):
    async def events():
        for _ in range(4):
            clock.now_s += 0.6 * KEEP_ALIVE_S
            yield b"{}"
            await asyncio.sleep(4 * KEEP_ALIVE_S)  # the watch looks, and no silence was long

    wire = asyncio.run(run(events(), Wire(), keep_alive_s=KEEP_ALIVE_S))
    assert wire.body == b"data: {}\n\n" * 4 + b"data: [DONE]\n\n"


def test_a_silence_is_broken_when_it_is_long_enough(clock):
    wire = Wire()

    async def events():
        await silence(clock, wire)
        yield b"{}"

    asyncio.run(run(events(), wire, keep_alive_s=KEEP_ALIVE_S))
    assert wire.body == b": keep-alive\n\ndata: {}\n\ndata: [DONE]\n\n"
    assert (wire.status, wire.num_responses) == (200, 1)


@pytest.mark.parametrize("error", [None, OverloadedError("full")])
def test_nothing_follows_the_end(error):
    async def events():
        if error is not None:
            raise error
        yield b"{}"

    wire = asyncio.run(run(events(), SlowEnd(), keep_alive_s=KEEP_ALIVE_S))
    assert [is_last(message) for message in wire.sent].index(True) == len(wire.sent) - 1
    assert wire.status == (200 if error is None else 503)


def test_an_error_in_the_middle_is_an_event_and_a_line_in_the_log(caplog):
    async def events():
        yield b"{}"
        raise RequestFailedError("it broke at 0xdeadbeef")

    wire = asyncio.run(run(events(), Wire()))
    assert (wire.status, wire.num_responses, wire.is_complete) == (200, 1, True)
    _, last = wire.events
    assert last["error"]["message"] == "it broke at <address>"
    assert "request req-1 failed" in caplog.text


def test_an_error_before_the_first_event_is_the_full_response():
    async def events():
        raise OverloadedError("full")
        yield b""

    wire = asyncio.run(run(events(), Wire()))
    assert (wire.status, wire.error["code"], wire.num_responses) == (503, "overloaded", 1)
    assert wire.headers["retry-after"] == "1"


def test_an_error_after_a_comment_is_an_event(clock):
    wire = Wire()

    async def events():
        await silence(clock, wire)
        raise OverloadedError("full")
        yield b""

    asyncio.run(run(events(), wire, keep_alive_s=KEEP_ALIVE_S))
    assert (wire.status, wire.num_responses) == (200, 1)
    assert b'"code":"overloaded"' in wire.body
    assert wire.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("num_read", [1, 2])
def test_a_client_that_reads_nothing_is_left_with_a_line_in_the_log(monkeypatch, caplog, num_read):
    monkeypatch.setattr(sse, "READ_TIMEOUT_S", 0.02)
    closed, over = [], []

    async def events():
        try:
            while True:
                yield b"{}"
        finally:
            closed.append(True)

    wire = Wire(num_read=num_read)
    asyncio.run(run(events(), wire, on_close=lambda: over.append(len(closed))))
    assert len(wire.sent) == num_read
    assert not wire.is_complete
    assert over == [1]
    assert "a client read nothing for 0.02 s" in caplog.text
    assert "failed" not in caplog.text


def test_a_client_that_goes_ends_the_events_before_the_stream_is_over():
    closed, over = [], []

    async def events():
        try:
            yield b"{}"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def main():
        wire = Wire()
        asyncio.get_running_loop().call_later(0.01, wire.gone.set)
        return await run(events(), wire, on_close=lambda: over.append(len(closed)))

    wire = asyncio.run(main())
    assert wire.body == b"data: {}\n\n"
    assert over == [1]


def test_an_error_of_the_connection_is_not_taken_for_a_disconnect():
    async def events():
        await asyncio.Event().wait()
        yield b""

    class Broken(Wire):
        async def receive(self):
            raise OSError("the socket broke")

    over = []
    with pytest.raises(OSError, match="the socket broke"):
        asyncio.run(run(events(), Broken(), on_close=lambda: over.append(1)))
    assert over == [1]


def test_a_stream_has_its_headers_and_no_length():
    async def events():
        yield b"{}"

    stream = EventStream(events(), "req-1")
    wire = Wire()
    asyncio.run(stream({"type": "http", "path": "/"}, wire.receive, wire.send))
    assert wire.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
    }


def test_a_blocked_write_is_looked_at_no_more_often_than_a_silence_lasts():
    looks = []

    class Counted(EventStream):
        def _look(self, send):
            looks.append(send)
            super()._look(send)

    async def events():
        yield b"{}"

    async def main():
        wire = Wire(num_read=1)  # nothing but the head
        asyncio.get_running_loop().call_later(40 * KEEP_ALIVE_S, wire.gone.set)
        stream = Counted(events(), "req-1", keep_alive_s=4 * KEEP_ALIVE_S)
        await asyncio.wait_for(stream({"type": "http", "path": "/"}, wire.receive, wire.send), 10)

    asyncio.run(main())
    assert 1 < len(looks) <= 12
