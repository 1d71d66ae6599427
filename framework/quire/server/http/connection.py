"""HTTP/1.1 connections: timeouts, pipelining, errors of the protocol, half-closed clients.

Every error of the protocol gets a JSON error where a reply is possible, and ends the connection.

A client may end its sending side after a request, and still gets its whole response. Whether it is
there at all is found by writing: probes until the response starts (see `client_probe`), then the
response itself.

See `lifetime` for the deadlines of a connection.
"""

import asyncio
import time
from collections import deque
from typing import Any

from starlette.types import ASGIApp, Scope

from quire.server.http import lifetime
from quire.server.http.client_probe import ClientProbe
from quire.server.http.connections import Connections
from quire.server.http.held_request import HeldRequest
from quire.server.http.http_exchange import HTTPExchange
from quire.server.http.lifetime import Lifetime
from quire.server.http.request_head import Head, bad_request
from quire.server.http.request_parser import RequestParser
from quire.server.wire.http_errors import HTTPError, error_response

MAX_PIPELINED = 32  # requests that wait for the response of the first one
_REFUSED = Head("GET", b"*", [], "1.1")


class Connection(asyncio.BufferedProtocol):
    """One connection, which has at most one request in progress.

    Args:
        shared: The server's connections.
    """

    _transport: asyncio.Transport
    _lifetime: Lifetime

    def __init__(self, shared: Connections) -> None:
        self._shared = shared
        self._parser = RequestParser(self)
        self._current: HTTPExchange | None = None  # its response is in progress
        self._waiting: deque[tuple[HTTPExchange, ASGIApp]] = deque()
        self._receiving: HTTPExchange | None = None  # its body is being received
        self._held: HeldRequest | None = None  # it may be refused before anything else is done
        self._peers: dict[str, Any] = {}
        self._arrival_s = 0.0
        self._drained: asyncio.Event | None = None
        self._is_reading = True
        self._takes_requests = True
        self._has_ended = False  # the client's sending side
        self._probe: ClientProbe | None = None

    # -- from the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request, or close a connection over the limit."""
        self._transport = transport
        self._lifetime = Lifetime(transport, self._give_up)
        if not self._shared.admit(self):
            self._takes_requests = False
            transport.close()
            return
        self._peers = {
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }
        self._lifetime.await_head()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory of all connections: what is read is parsed at once."""
        del sizehint
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was read."""
        self.data_received(bytes(self._shared.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Parse data; what follows the last request is dropped."""
        if not self._takes_requests and self._receiving is None:
            return
        try:
            self._parser.feed(data)
        except HTTPError as error:
            self._pass_held()
            self._refuse(error)
        if self._held is not None:
            self._decide()

    def eof_received(self) -> bool:
        """Go on with the requests of a client that has only ended its sending side."""
        self._has_ended = True
        is_waiting = self._current is not None and self._receiving is None
        self._takes_requests = False
        if is_waiting and self._shared.peers.is_supported:
            self._probe = ClientProbe(self._transport, self._shared.peers, self._takes_probe)
        else:
            self._lifetime.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request in progress."""
        del exc
        self._shared.forget(self)
        if self._probe is not None:
            self._probe.stop()
        self._lifetime.end()
        self._waiting.clear()
        for exchange in (self._current, self._receiving):
            if exchange is not None:
                exchange.disconnect()
        self._let_go_on()

    def pause_writing(self) -> None:
        """Stop the application: the client does not read."""
        self._drained = asyncio.Event()
        self._lifetime.pause()

    def resume_writing(self) -> None:
        """Let the application go on."""
        self._lifetime.resume()
        self._let_go_on()
        self._rest()

    def _let_go_on(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    # -- from the parser ---------------------------------------------------------------------------

    def on_begin(self) -> None:
        """Start the timeout of a head, and the clock of its request."""
        self._arrival_s = time.monotonic()
        self._shared.idle.discard(self)
        if self._current is None:
            self._lifetime.await_head()

    def on_head(self, head: Head, *, keep_alive: bool) -> None:
        """Start a request, or queue it behind the one in progress, or hold it to refuse it."""
        if len(self._waiting) >= MAX_PIPELINED:
            raise bad_request(f"more than {MAX_PIPELINED} requests wait for their responses")
        scope = head.scope(quire_arrival_s=self._arrival_s, **self._peers)
        self._takes_requests = keep_alive
        early = self._shared.early_refusals
        is_next = self._current is None and self.is_writable
        if is_next and early is not None and early.may_refuse(head):
            self._held = HeldRequest(scope, keep_alive)
        else:
            self._pass(scope, keep_alive=keep_alive)

    def on_body(self, data: bytes) -> None:
        """Add a piece of a request's body."""
        if self._held is not None:
            self._held.body += data
        elif self._receiving is not None:
            self._receiving.feed(data)

    def on_end(self) -> None:
        """End a request."""
        if self._held is not None:
            self._held.is_whole = True
            self._decide()
            return
        exchange, self._receiving = self._receiving, None
        if exchange is not None:
            exchange.feed_end()
        if self._current is None:
            self._lifetime.idle()
            self._rest()

    # -- for the exchange --------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Whether the client reads what is written."""
        return self._drained is None

    def write(self, data: bytes) -> None:
        """Write data."""
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough."""
        while self._drained is not None:
            await self._drained.wait()

    def resume_reading(self) -> None:
        """Receive more, unless that would be for requests whose turn has not come."""
        is_wanted = not (self._is_reading or self._waiting or self._has_ended)
        if is_wanted and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        """Receive nothing for now."""
        if self._is_reading and not self._has_ended:
            self._is_reading = False
            self._transport.pause_reading()

    def date(self) -> bytes:
        """Return the header with the current date."""
        return self._shared.date()

    def finish(self, exchange: HTTPExchange) -> None:
        """Go on with the next request, or close the connection."""
        self._current = None
        if self._transport.is_closing():
            return
        if not exchange.keep_alive:
            self._close(is_received=exchange.is_received)
        elif self._waiting:
            self._begin(*self._waiting.popleft())
        elif self._has_ended:
            self._lifetime.close()
        elif exchange.is_received and not self._parser.is_in_head:
            self._lifetime.idle()
            self._rest()
        else:
            self._lifetime.await_head()
        self.resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    # -- from the server ---------------------------------------------------------------------------

    def close_when_idle(self) -> None:
        """Close the connection now, or after the response in progress."""
        self._waiting.clear()
        if self._current is None:
            self._lifetime.close()
        else:
            self._takes_requests = False
            self._current.keep_alive = False

    # -- within ------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Refuse the request that is held, or pass it to the application."""
        held, early = self._held, self._shared.early_refusals
        if held is None or early is None:
            return
        response = early.refusal(held.scope, bytes(held.body) if held.is_whole else None)
        if response is None:
            self._pass_held()
            return
        self._held = None
        keep_alive = held.keep_alive and response.keep_alive and held.is_worth_waiting
        self.write(response.encoded(self.date(), keep_alive=keep_alive))
        if not keep_alive:
            self._close(is_received=held.is_whole)
        elif held.is_whole:
            self._lifetime.idle()
            self._rest()

    def _pass_held(self) -> None:
        """Pass the request that is held, if there is one, to the application."""
        held, self._held = self._held, None
        if held is None:
            return
        exchange = self._pass(held.scope, keep_alive=held.keep_alive)
        exchange.feed(bytes(held.body))
        if held.is_whole:
            self._receiving = None
            exchange.feed_end()

    def _pass(self, scope: Scope, *, keep_alive: bool) -> HTTPExchange:
        exchange = HTTPExchange(self, scope, keep_alive=keep_alive)
        self._receiving = exchange
        self._enqueue(exchange, self._shared.app)
        return exchange

    def _enqueue(self, exchange: HTTPExchange, app: ASGIApp) -> None:
        if self._current is None:
            self._begin(exchange, app)
        else:
            self._waiting.append((exchange, app))
            self.pause_reading()

    def _begin(self, exchange: HTTPExchange, app: ASGIApp) -> None:
        self._current = exchange
        self._shared.idle.discard(self)
        self._lifetime.serve()
        self._shared.start(exchange, app)

    def _refuse(self, error: HTTPError) -> None:
        """Respond with an error, after the responses before it, and take no more requests."""
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.fail(error)
            if self._current is None:  # its response is over
                self._close(is_received=False)
        elif self._takes_requests:
            self._enqueue(
                HTTPExchange(self, _REFUSED.scope(**self._peers), keep_alive=False),
                error_response(error),
            )
        self._takes_requests = False
        line = "requests that were no valid HTTP: {num}, the last one with: " + str(error)
        self._shared.refusals.note("protocol", line)

    def _close(self, *, is_received: bool) -> None:
        """Close the connection; a client that still sends has time to read its response first."""
        self._takes_requests = False
        self._receiving = None
        if is_received or self._has_ended:
            self._lifetime.close()
        else:
            self._lifetime.linger()

    def _rest(self) -> None:
        """Give way to new connections, if nothing is to be received or sent."""
        has_request = self._current or self._receiving or self._parser.is_in_head
        if not has_request and self.is_writable and self._takes_requests:
            self._shared.idle.add(self)

    def _takes_probe(self) -> bool:
        current = self._current
        return current is not None and not current.has_started and current.is_modern

    def _give_up(self) -> None:
        line = f"a client read nothing for {lifetime.STALL_S:g} s: closed {{num}} connections"
        self._shared.refusals.note("stalled", line)
        self.abort()


def _address(name: object) -> tuple[str, int] | None:
    """Return host and port of a socket's name; None for other families."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return None
