"""A tool server that has a URL: the streamable HTTP transport of `mcp`, with bounded responses.

It uses no proxy and no netrc of the environment, and follows no redirect to another origin.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client

logger = logging.getLogger(__name__)

Streams = tuple[object, object]  # of the `mcp` package, which types them by private protocols

_CONNECT_TIMEOUT_S = 10.0
_EVENTS = "text/event-stream"
_SESSION = "mcp-session-id"
_NOT_FOUND, _BAD_GATEWAY = 404, 502


@asynccontextmanager
async def http_streams(
    url: str,
    token: str | None,
    timeout_s: float,
    max_bytes: int,
    on_session_end: Callable[[], None],
) -> AsyncIterator[Streams]:
    """Yield the streams of messages to and from a URL.

    Args:
        url: The URL.
        token: Bearer token, if it needs one.
        timeout_s: Seconds for which the server may send nothing.
        max_bytes: Largest size of a message.
        on_session_end: Function called when the server says that it knows the session no more.
    """
    headers = {"accept-encoding": "identity"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    client = httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
        transport=BoundedTransport(httpx2.AsyncHTTPTransport(), max_bytes, on_session_end),
        trust_env=False,
    )
    streams = streamable_http_client(url, http_client=client, max_sse_event_size=max_bytes)
    async with client, streams as (read_stream, write_stream):
        yield read_stream, write_stream


class BoundedTransport(httpx2.AsyncBaseTransport):
    """A transport whose responses have at most so many bytes; each event of a stream is bounded.

    A request that breaks off has the status 502, as the `mcp` package would end all others with it;
    only a server that cannot be reached ends the connection.

    Args:
        inner: Transport that sends the requests.
        max_bytes: Largest size of a response.
        on_session_end: Function called when the server says that it knows the session no more.
    """

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        max_bytes: int,
        on_session_end: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._on_session_end = on_session_end

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            ConnectError: The server cannot be reached.
            ConnectTimeout: It cannot be reached in time.
        """
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise
        except httpx2.TransportError as error:
            return _broken_off(request, type(error).__name__)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            return _broken_off(request, "the response is compressed, which was not asked for")
        if response.status_code == _NOT_FOUND and _SESSION in request.headers:
            self._on_session_end()
        is_events = response.headers.get("content-type", "").lower().startswith(_EVENTS)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            max_bytes = None if is_events else self._max_bytes
            response.stream = _BoundedStream(response.stream, max_bytes)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _broken_off(request: httpx2.Request, why: str) -> httpx2.Response:
    logger.warning("a request to the tool server at %s failed: %s", request.url.host, why)
    return httpx2.Response(_BAD_GATEWAY, request=request)


class _BoundedStream(httpx2.AsyncByteStream):
    """A body; one that breaks off is an error of its request alone, as one that is too large is."""

    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int | None) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        try:
            async for piece in self._inner:
                num_bytes += len(piece)
                if self._max_bytes is not None and num_bytes > self._max_bytes:
                    raise httpx2.StreamError(f"the response is larger than {self._max_bytes} bytes")
                yield piece
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the response broke off: {type(error).__name__}") from None

    async def aclose(self) -> None:
        await self._inner.aclose()
