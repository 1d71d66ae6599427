"""Cancellation of the work for a request when its client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from quire.server.http.body_budget import LimitedReceive
from quire.server.http.http_exchange import HTTPExchange

T = TypeVar("T")


async def run_while_connected(work: Coroutine[Any, Any, T], receive: Receive, scope: Scope) -> T:
    """Run `work` to its end, or until the client disconnects.

    On a connection of our own server that costs no task: the connection cancels the work. With
    another ASGI server a second task waits for the message.

    Args:
        work: Coroutine to run; cancelled when the client disconnects.
        receive: Function that receives the request's messages; the body is read already.
        scope: ASGI scope of the request.

    Raises:
        ClientDisconnect: The client disconnected.
    """
    exchange = exchange_of(scope)
    if exchange is None:
        return await run_until(work, _disconnected(receive))
    if isinstance(receive, LimitedReceive):
        receive.release()  # the body is decoded
    return await exchange.while_connected(work)


def exchange_of(scope: Scope) -> HTTPExchange | None:
    """Return the exchange on a connection of our own server; None with another server."""
    exchange = scope.get("quire_exchange")
    return exchange if isinstance(exchange, HTTPExchange) else None


async def run_until(work: Coroutine[Any, Any, T], end: Coroutine[Any, Any, None]) -> T:
    """Run `work` to its end, or until `end` finishes; neither of them is left running.

    Raises:
        ClientDisconnect: `end` finished first.
    """
    working, ending = asyncio.create_task(work), asyncio.create_task(end)
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        ending.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        ending.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
