"""A full response is sent in pieces, as its client reads; what it held is always released."""

import asyncio
import threading

import pytest
from asgi_parts import Wire
from starlette.requests import ClientDisconnect

from quire.errors import RequestFailedError
from quire.server.http import event_stream as sse
from quire.server.http import json_response as module
from quire.server.http.event_stream import EventStream
from quire.server.http.json_response import (
    PIECE_BYTES,
    EncodedResponse,
    in_thread_if,
    json_of,
    json_response,
)

BODY = bytes(range(256)) * (PIECE_BYTES // 256 * 2) + b"end"


class Case:
    """A response, and whether it was closed when its last piece was sent."""

    def __init__(self, make, wire):
        self.num_over = 0
        self.wire = wire
        self.response = EncodedResponse(make, self.end)

    def end(self):
        self.num_over += 1

    async def run(self):
        call = self.response({"type": "http", "path": "/"}, self.wire.receive, self.wire.send)
        await asyncio.wait_for(call, 10)


async def make():
    return BODY


def test_it_leaves_in_pieces_and_is_over_behind_the_last_one():
    async def main():
        case = Case(make, wire := Wire())
        await case.run()
        head, *pieces = wire.sent
        assert dict(head["headers"])[b"content-length"] == str(len(BODY)).encode()
        assert b"".join(piece["body"] for piece in pieces) == BODY
        assert [piece["more_body"] for piece in pieces] == [True, True, False]
        assert max(len(piece["body"]) for piece in pieces) == PIECE_BYTES
        assert case.num_over == 1

    asyncio.run(main())


def test_a_failure_and_a_client_that_goes_are_ends_too():
    async def fail():
        raise RequestFailedError("it broke")

    async def never():
        await asyncio.Event().wait()

    async def main():
        failing = Case(fail, Wire())
        with pytest.raises(RequestFailedError):
            await failing.run()
        left = Case(never, Wire())
        left.wire.gone.set()
        with pytest.raises(ClientDisconnect):
            await left.run()
        assert (failing.num_over, left.num_over) == (1, 1)
        assert failing.wire.sent == left.wire.sent == []

    asyncio.run(main())


def test_a_client_that_reads_nothing_is_taken_for_gone(monkeypatch):
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sse, "READ_TIMEOUT_S", 0.05)
    closed = []

    async def events():
        try:
            for _ in range(100):
                yield b"{}"
        finally:
            closed.append(True)

    async def main():
        case = Case(make, Wire(num_read=2))
        await case.run()
        assert (len(case.wire.sent), case.num_over) == (2, 1)
        wire, over = Wire(num_read=3), []
        stream = EventStream(events(), "req-1", on_close=lambda: over.append(len(closed)))
        await asyncio.wait_for(stream({"type": "http", "path": "/"}, wire.receive, wire.send), 10)
        assert over == [1]  # and by then nothing makes events any more

    asyncio.run(main())


@pytest.mark.parametrize("num_bytes", [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_the_last_piece_says_that_it_is_the_last(num_bytes):
    async def make_some():
        return b"x" * num_bytes

    async def main():
        case = Case(make_some, wire := Wire())
        await case.run()
        _, *pieces = wire.sent
        assert sum(len(piece["body"]) for piece in pieces) == num_bytes
        assert [piece["more_body"] for piece in pieces] == [True] * (len(pieces) - 1) + [False]
        assert len(pieces) == -(-num_bytes // PIECE_BYTES)

    asyncio.run(main())


def test_a_timeout_of_the_work_itself_is_a_failure_and_no_slow_client(caplog):
    async def fail():
        raise TimeoutError("a plugin's")

    case = Case(fail, Wire())
    with pytest.raises(TimeoutError, match="a plugin's"):
        asyncio.run(case.run())
    assert case.num_over == 1
    assert "read nothing" not in caplog.text


@pytest.mark.parametrize("is_large", [False, True])
def test_what_takes_long_is_done_beside_the_event_loop(is_large):
    name = asyncio.run(in_thread_if(is_large, lambda: threading.current_thread().name))
    assert (name != threading.current_thread().name) is is_large


def test_a_json_response_has_its_status_and_type():
    response = json_response({"a": 1}, 503)
    assert (response.status_code, response.body) == (503, b'{"a":1}')
    assert response.media_type == "application/json"
    assert json_response([]).status_code == 200
    with pytest.raises(NotImplementedError, match="object cannot be written"):
        json_of(object())
