"""Messages between a server and its processes: whole, in order, and nothing after the end."""

import asyncio
import socket

import pytest

from quire.process.ipc import UnreadableError
from quire.server.group.control_stream import ControlStream
from quire.server.group.group_wire import (
    Drain,
    FromProcess,
    Rendered,
    Serve,
    StopServing,
    ToProcess,
)


def between(run):
    """Run a coroutine function with both ends of a stream."""

    async def start():
        ours, theirs = socket.socketpair()
        one = await ControlStream.of(ours, FromProcess)
        other = await ControlStream.of(theirs, ToProcess)
        try:
            await run(one, other)
        finally:
            one.close()
            other.close()

    asyncio.run(start())


def test_messages_arrive_in_order_also_large_ones():
    large = Rendered(1, b"x" * 3_000_000, "text/plain")

    async def run(one, other):
        for message in (Serve(), large, Drain(), StopServing()):
            one.send(message)
        assert [await other.receive() for _ in range(4)] == [Serve(), large, Drain(), StopServing()]

    between(run)


def test_the_end_is_none_and_what_is_sent_then_is_lost():
    async def run(one, other):
        one.close()
        assert await other.receive() is None
        other.close()
        other.send(Serve())

    between(run)


def test_a_message_that_is_none_is_an_error():
    async def run(one, other):
        one.send("nonsense")
        with pytest.raises(UnreadableError):
            await other.receive()

    between(run)
