"""A transport reads at once, sends all or says why not, and ends once."""

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.server.http.socket_transport import HIGH_WATER, SocketTransport


class Recording(asyncio.BufferedProtocol):
    """Records what it is told; `error` is raised for the data that it names."""

    def __init__(self, stays=True, error=None):
        self.events, self.data = [], b""
        self.lost = asyncio.Event()
        self._buffer = bytearray(1000)
        self._stays, self._error = stays, error

    def connection_made(self, transport):
        self.events.append("made")
        if self._error == "made":
            raise ValueError("a bug")

    def get_buffer(self, sizehint):
        return self._buffer

    def buffer_updated(self, nbytes):
        if self._error == "data":
            raise ValueError("a bug")
        self.data += self._buffer[:nbytes]

    def eof_received(self):
        self.events.append("eof")
        return self._stays

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, exc):
        self.events.append(("lost", type(exc)))
        self.lost.set()


class Pair:
    """A transport with its protocol, and the client's end of the connection."""

    def __init__(self, **options):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        with listener:
            self.client = socket.create_connection(listener.getsockname(), timeout=5)
            accepted, self.peername = listener.accept()
        accepted.setblocking(False)
        self.protocol = Recording(**options)
        self.transport = SocketTransport(accepted, self.protocol, self.peername)

    async def received(self, num=None):
        """Read until the end, or so many bytes."""
        self.client.setblocking(False)
        loop, data = asyncio.get_running_loop(), b""
        while num is None or len(data) < num:
            if not (piece := await loop.sock_recv(self.client, 4096)):
                break
            data += piece
        return data

    async def end(self):
        self.transport.abort()
        await self.protocol.lost.wait()
        self.client.close()


def run(work):
    async def main():
        async with asyncio.timeout(20):
            await work()

    asyncio.run(main())


async def until(is_true):
    while not is_true():
        await asyncio.sleep(0.005)


def test_what_has_come_is_read_before_start_returns():
    async def work():
        pair = Pair()
        pair.client.sendall(b"hello")
        pair.transport.start()
        assert (pair.protocol.events, pair.protocol.data) == (["made"], b"hello")
        assert pair.transport.get_extra_info("peername") == pair.peername
        assert pair.transport.get_extra_info("sockname") == pair.client.getpeername()
        pair.client.sendall(b" again")
        await until(lambda: pair.protocol.data == b"hello again")
        await pair.end()

    run(work)


def test_nothing_is_read_while_reading_is_paused():
    async def work():
        pair = Pair()
        pair.transport.start()
        pair.transport.pause_reading()
        assert not pair.transport.is_reading()
        pair.client.sendall(b"hello")
        await asyncio.sleep(0.05)
        assert pair.protocol.data == b""
        pair.transport.resume_reading()
        await until(lambda: pair.protocol.data == b"hello")
        await pair.end()

    run(work)


@pytest.mark.parametrize("stays", [True, False])
def test_the_protocol_says_whether_a_client_that_sends_no_more_is_answered(stays):
    async def work():
        pair = Pair(stays=stays)
        pair.transport.start()
        pair.client.shutdown(socket.SHUT_WR)
        await until(lambda: "eof" in pair.protocol.events)
        assert pair.transport.is_closing() is not stays
        if stays:
            pair.transport.write(b"late")
            pair.transport.close()
        assert await pair.received() == (b"late" if stays else b"")
        await pair.end()
        assert pair.protocol.events == ["made", "eof", ("lost", type(None))]

    run(work)


@pytest.mark.parametrize("end", ["close", "write_eof"])
def test_all_is_sent_before_the_end(end):
    async def work():
        pair = Pair()
        pair.transport.start()
        pair.transport.write(b"x" * 500_000)
        assert pair.transport.get_write_buffer_size() > 0
        getattr(pair.transport, end)()
        assert len(await pair.received()) == 500_000
        await pair.end()
        assert pair.protocol.events == ["made", "pause", "resume", ("lost", type(None))]

    run(work)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 100_000), max_size=8), st.integers(0, 100_000))
def test_all_pieces_arrive_in_order(sizes, high):
    async def work():
        pair = Pair()
        pair.transport.start()
        pair.transport.set_write_buffer_limits(high)
        sent = b""
        for index, size in enumerate(sizes):
            piece = bytes([index]) * size
            pair.transport.write(piece)
            sent += piece
        pair.transport.close()
        assert await pair.received() == sent
        await pair.end()
        pauses = [each for each in pair.protocol.events if each in ("pause", "resume")]
        assert pauses == ["pause", "resume"] * (len(pauses) // 2)

    run(work)


def test_an_abort_drops_what_is_not_sent_and_ends_later_and_once():
    async def work():
        pair = Pair()
        pair.transport.start()
        pair.transport.write(b"x" * 500_000)
        pair.transport.abort()
        pair.transport.abort()
        pair.transport.close()
        pair.transport.write(b"dropped")
        assert not pair.protocol.lost.is_set(), "the protocol is not called from within a call"
        assert pair.transport.get_write_buffer_size() == 0
        await pair.protocol.lost.wait()
        await asyncio.sleep(0.01)
        assert pair.protocol.events == ["made", "pause", ("lost", type(None))]
        assert pair.transport.get_extra_info("socket").fileno() == -1
        pair.client.close()

    run(work)


def test_a_client_that_is_gone_ends_the_connection_with_the_error():
    async def work():
        pair = Pair()
        pair.transport.start()
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        pair.client.close()  # a reset
        await pair.protocol.lost.wait()
        assert pair.protocol.events == ["made", ("lost", ConnectionResetError)]
        pair.transport.write(b"late")

    run(work)


def test_a_reset_is_found_by_writing_too():
    async def work():
        pair = Pair()
        pair.transport.start()
        pair.transport.pause_reading()
        pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        pair.client.close()
        pair.transport.write(b"late")
        await pair.protocol.lost.wait()
        assert pair.protocol.events[-1][0] == "lost"
        assert issubclass(pair.protocol.events[-1][1], OSError)

    run(work)


@pytest.mark.parametrize("error", ["made", "data"])
def test_an_error_of_the_protocol_ends_the_connection_and_is_not_hidden(error):
    async def work():
        pair = Pair(error=error)
        pair.client.sendall(b"x")
        with pytest.raises(ValueError, match="a bug"):
            pair.transport.start()
        await pair.protocol.lost.wait()
        pair.client.close()

    run(work)


def test_nothing_is_sent_after_the_sending_side_has_ended():
    async def work():
        pair = Pair()
        pair.transport.start()
        assert pair.transport.can_write_eof()
        pair.transport.write_eof()
        pair.transport.write_eof()
        with pytest.raises(RuntimeError, match="has ended"):
            pair.transport.write(b"x")
        assert await pair.received() == b""
        await pair.end()

    run(work)


@pytest.mark.parametrize(
    ("given_limits", "limits"),
    [
        ((), (HIGH_WATER // 4, HIGH_WATER)),
        ((0,), (0, 0)),
        ((100,), (25, 100)),
        ((None, 10), (10, 40)),
    ],
)
def test_limits_of_the_unsent_bytes_are_those_of_asyncio(given_limits, limits):
    async def work():
        pair = Pair()
        pair.transport.set_write_buffer_limits(*given_limits)
        assert pair.transport.get_write_buffer_limits() == limits
        with pytest.raises(ValueError, match="high"):
            pair.transport.set_write_buffer_limits(1, 2)
        await pair.end()

    run(work)


def test_a_limit_below_what_is_unsent_pauses_the_protocol_at_once():
    async def work():
        pair = Pair()
        pair.transport.start()
        pair.transport.write(b"x" * 60_000)
        assert "pause" not in pair.protocol.events
        pair.transport.set_write_buffer_limits(0)
        assert pair.protocol.events[-1] == "pause"
        assert len(await pair.received(60_000)) == 60_000
        await until(lambda: pair.protocol.events[-1] == "resume")
        await pair.end()

    run(work)
