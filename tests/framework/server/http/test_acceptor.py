"""Without free descriptors, connections wait; the log says so once and the loop does not spin."""

import asyncio
import errno
import resource
import socket
import time

import pytest

from quire.server.http.acceptor import Acceptor
from quire.server.http.refusals import Refusals


class Greeting(asyncio.BufferedProtocol):
    def connection_made(self, transport):
        transport.write(b"hello")
        transport.close()


def bound():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


async def read(address):
    reader, writer = await asyncio.open_connection(*address)
    try:
        return await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()


def test_connections_are_accepted_until_it_is_stopped():
    async def main():
        acceptor = Acceptor(listener := bound(), Greeting, Refusals())
        address = listener.getsockname()
        acceptor.start()
        assert await asyncio.gather(*(read(address) for _ in range(100))) == [b"hello"] * 100
        acceptor.stop()
        assert listener.fileno() == -1

    asyncio.run(main())


def test_a_turn_of_the_event_loop_does_not_accept_for_long():
    turns = []

    class Slow(Greeting):
        def connection_made(self, transport):
            turns.append(time.monotonic())
            time.sleep(0.01)
            super().connection_made(transport)

    async def main():
        acceptor = Acceptor(listener := bound(), Slow, Refusals())
        acceptor.start()
        address = listener.getsockname()
        clients = [socket.create_connection(address, timeout=5) for _ in range(8)]
        num_turns = 0
        while len(turns) < len(clients):
            num_turns += 1
            await asyncio.sleep(0)
        assert num_turns >= len(clients), "none accepts a second one after more than 5 ms"
        for client in clients:
            client.close()
        acceptor.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_exhausted_descriptors_are_one_line_and_a_pause(caplog):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_attempts = []

    class Counting(Refusals):
        def note(self, kind, line):
            num_attempts.append(kind)
            super().note(kind, line)

    async def main():
        acceptor = Acceptor(listener := bound(), Greeting, Counting())
        acceptor.start()
        client = socket.create_connection(listener.getsockname(), timeout=5)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            await asyncio.sleep(0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert 2 <= len(num_attempts) <= 6  # one for each pause
        assert await asyncio.wait_for(loop.sock_recv(client, 100), 5) == b"hello"
        client.close()
        acceptor.stop()

    asyncio.run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Too many open files" in caplog.text
    assert "Traceback" not in caplog.text


class Unlucky(socket.socket):
    """A listening socket on which one connection after another broke before it was accepted."""

    codes = ()

    def accept(self):
        if self.codes:
            raise OSError(self.codes.pop(), "it broke")
        return super().accept()


@pytest.mark.parametrize(
    "code",
    [
        errno.EPROTO,
        errno.EHOSTUNREACH,
        errno.EHOSTDOWN,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.ETIMEDOUT,
        errno.ECONNABORTED,
        errno.EPERM,
    ],
)
def test_connections_that_broke_are_one_line_and_the_next_is_accepted(caplog, code):
    async def main():
        listener = Unlucky()
        listener.bind(("127.0.0.1", 0))
        listener.codes = [code] * 5
        acceptor = Acceptor(listener, Greeting, Refusals())
        acceptor.start()
        assert await read(listener.getsockname()) == b"hello"
        assert listener.codes == []
        acceptor.stop()

    asyncio.run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "it broke" in caplog.text
    assert "Traceback" not in caplog.text


def test_it_can_be_stopped_in_a_pause():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def main():
        acceptor = Acceptor(listener := bound(), Greeting, Refusals())
        acceptor.start()
        with socket.create_connection(listener.getsockname(), timeout=5):
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                await asyncio.sleep(0.05)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            acceptor.stop()
            await asyncio.sleep(0.2)

    asyncio.run(main())
