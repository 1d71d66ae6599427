"""The open connections of a server: their number, what they share, and their end.

See `connection_limit` for the number of connections.
"""

import asyncio
import time
from contextlib import suppress
from email.utils import formatdate
from typing import Protocol

from starlette.types import ASGIApp

from quire.server.http.connection_limit import connection_limits
from quire.server.http.early_refusals import EarlyRefusals
from quire.server.http.http_exchange import HTTPExchange
from quire.server.http.idle_connections import IdleConnections
from quire.server.http.peer_watch import PeerWatch
from quire.server.http.refusals import Refusals

READ_BYTES = 64 * 1024  # at most at once; so much a request may hold before its turn comes


class OpenConnection(Protocol):
    """A connection, as the server ends it."""

    def close_when_idle(self) -> None:
        """Close the connection now, or after the response in progress."""

    def abort(self) -> None:
        """Close the connection at once."""


class Connections:
    """The open connections of a server, and what they share; in one event loop.

    Args:
        app: ASGI application.
        refusals: Log of refused connections.
        early_refusals: What refuses requests before they reach the application; None: nothing does.

    Attributes:
        open: Open connections.
        buffer: Memory into which each connection in turn reads.
        idle: Those of them that give way to new ones.
        tasks: Tasks of the requests in flight.
    """

    def __init__(
        self, app: ASGIApp, refusals: Refusals, early_refusals: EarlyRefusals | None = None
    ) -> None:
        self.app = app
        self.early_refusals = early_refusals
        self.refusals = refusals
        self.open: set[OpenConnection] = set()
        self.idle: IdleConnections[OpenConnection] = IdleConnections()
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()
        self.peers = PeerWatch()
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._lost = asyncio.Event()
        self._date_s = 0
        self._date = b""

    def start(self, exchange: HTTPExchange, app: ASGIApp) -> None:
        """Run an application for a request."""
        task = self.loop.create_task(exchange.run(app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self, grace_s: float) -> None:
        """Close all connections; responses have `grace_s` seconds to end and to be sent."""
        for connection in list(self.open):
            connection.close_when_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._wait_for_ends()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in list(self.open):
            connection.abort()
        await asyncio.sleep(0)  # for the transports to report their ends
        self.peers.close()

    def admit(self, connection: OpenConnection) -> bool:
        """Count a new connection; return whether it may stay, maybe in place of an idle one."""
        most = connection_limits().most
        self.open.add(connection)
        if len(self.open) > most:
            line = f"more than {most} open connections: closed {{num}} "
            oldest = self.idle.pop()
            if oldest is None:
                self.refusals.note("crowded", line + "new ones")
                return False
            self.refusals.note("replaced", line + "idle ones")
            oldest.close_when_idle()
        self.idle.add_fresh(connection)
        return True

    def forget(self, connection: OpenConnection) -> None:
        """Count a connection no more."""
        self.open.discard(connection)
        self.idle.discard(connection)
        self._lost.set()

    async def _wait_for_ends(self) -> None:
        while self.open:
            self._lost.clear()
            await self._lost.wait()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def date(self) -> bytes:
        """Return the header with the current date."""
        now_s = int(time.time())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()
        return self._date
