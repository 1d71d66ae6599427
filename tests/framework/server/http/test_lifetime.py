"""A client has its time to read a response, as long as it reads; one that stops is closed."""

import asyncio
import socket
from contextlib import asynccontextmanager
from functools import partial

import pytest
from starlette.responses import Response

from quire.server.http import lifetime
from quire.server.http.acceptor import Acceptor
from quire.server.http.connection import Connection
from quire.server.http.connections import Connections
from quire.server.http.refusals import Refusals

SIZE = 400_000
HEADERS = {"keep-alive": b"", "close": b"Connection: close\r\n"}


def listening():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    listener.bind(("127.0.0.1", 0))
    return listener


@asynccontextmanager
async def serving(body=b"x" * SIZE):
    """Serve one response to every request, through small buffers of the kernel."""
    refusals = Refusals()
    connections = Connections(Response(body), refusals)
    acceptor = Acceptor(listening(), partial(Connection, connections), refusals)
    acceptor.start()
    try:
        yield connections, acceptor.listener.getsockname()
    finally:
        acceptor.stop()
        await connections.close(0.0)


@asynccontextmanager
async def asking(address, headers=b""):
    """Send a request, and yield the client's socket."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    with client:
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
        yield client


async def body_of(client, pause_s=0.0):
    """Read slowly until the connection ends, and return the number of bytes behind the head."""
    received = b""
    while part := await asyncio.get_running_loop().sock_recv(client, 4000):
        received += part
        await asyncio.sleep(pause_s)
    return len(received.partition(b"\r\n\r\n")[2])


async def until(is_true):
    async with asyncio.timeout(20):
        while not is_true():
            await asyncio.sleep(0.01)


def num_unsent(connections):
    return sum(each._transport.get_write_buffer_size() for each in connections.open)


def run(work):
    asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("kind", HEADERS)
def test_a_slow_reader_gets_all_of_its_response(monkeypatch, kind):
    monkeypatch.setattr(lifetime, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(lifetime, "STALL_S", 1.0)

    async def main():
        async with serving() as (connections, address), asking(address, HEADERS[kind]) as client:
            assert await body_of(client, pause_s=0.02) == SIZE
            await until(lambda: not connections.open)

    run(main())


@pytest.mark.parametrize("kind", HEADERS)
def test_a_client_that_stops_reading_is_closed(monkeypatch, caplog, kind):
    monkeypatch.setattr(lifetime, "STALL_S", 0.2)

    async def main():
        async with (
            serving(b"x" * 60_000) as (connections, address),
            asking(address, HEADERS[kind]),
        ):
            await until(lambda: connections.open)
            await until(lambda: not connections.open)

    run(main())
    assert caplog.messages == ["a client read nothing for 0.2 s: closed 1 connections"]


def test_a_response_that_waits_for_its_reader_is_given_up_too(monkeypatch):
    monkeypatch.setattr(lifetime, "STALL_S", 0.2)
    ends = []

    async def app(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(10):
                piece = {"type": "http.response.body", "body": b"x" * SIZE, "more_body": True}
                await send(piece)
            await receive()
        finally:
            ends.append(scope["path"])

    async def main():
        async with serving() as (connections, address), asking(address):
            connections.app = app
            await until(lambda: ends)
            await until(lambda: not connections.open)

    run(main())


def test_a_second_request_is_served_while_the_first_response_is_unread(monkeypatch):
    monkeypatch.setattr(lifetime, "KEEP_ALIVE_S", 0.3)

    async def main():
        async with serving() as (connections, address), asking(address) as client:
            await until(lambda: connections.open)
            again = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            await asyncio.sleep(0.1)
            await asyncio.get_running_loop().sock_sendall(client, again)
            assert await body_of(client) > 2 * SIZE

    run(main())


@pytest.mark.parametrize("kind", HEADERS)
def test_a_shutdown_waits_for_what_is_unread(kind):
    async def main():
        async with (
            serving(b"x" * 60_000) as (connections, address),
            asking(address, HEADERS[kind]) as client,
        ):
            await until(lambda: num_unsent(connections))
            closing = asyncio.create_task(connections.close(20.0))
            assert await body_of(client, pause_s=0.01) == 60_000
            await closing

    run(main())


def test_a_shutdown_ends_with_its_grace():
    async def main():
        async with serving() as (connections, address), asking(address):
            await until(lambda: num_unsent(connections))
            await connections.close(0.1)
            assert not connections.open

    run(main())
