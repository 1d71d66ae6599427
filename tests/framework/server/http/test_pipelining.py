"""A request behind one in progress holds no more than one read of its body."""

import asyncio
import socket
from functools import partial

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from quire.server.http.acceptor import Acceptor
from quire.server.http.connection import Connection
from quire.server.http.connections import READ_BYTES, Connections
from quire.server.http.refusals import Refusals

SIZE = 2_000_000


def test_a_pipelined_body_is_received_when_its_turn_comes():
    first_begins, second_waits, first_ends = (asyncio.Event() for _ in range(3))

    async def app(scope, receive, send):
        body = await Request(scope, receive).body()
        if not body:
            first_begins.set()
            await second_waits.wait()
            leaving = asyncio.create_task(receive())  # as applications wait for a disconnect
            await first_ends.wait()
            leaving.cancel()
        await PlainTextResponse(str(len(body)))(scope, receive, send)

    async def main():
        listener, refusals = socket.socket(), Refusals()
        listener.bind(("127.0.0.1", 0))
        connections = Connections(app, refusals)
        acceptor = Acceptor(listener, partial(Connection, connections), refusals)
        acceptor.start()
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await first_begins.wait()
        head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % SIZE + b"x" * SIZE)
        (connection,) = connections.open
        while not connection._waiting:
            await asyncio.sleep(0.01)
        second_waits.set()
        await asyncio.sleep(0.3)  # for more of it to arrive, if it were read
        ((second, _),) = connection._waiting
        assert len(second._body) <= READ_BYTES
        first_ends.set()
        received = await reader.read()
        assert received.endswith(b"%d" % SIZE)
        writer.close()
        acceptor.stop()
        await connections.close(1.0)

    asyncio.run(asyncio.wait_for(main(), 30))
