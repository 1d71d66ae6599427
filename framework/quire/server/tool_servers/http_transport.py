"""A tool server that has a URL: the streamable HTTP transport of `mcp`, with bounded responses.

It uses no proxy and no netrc of the environment, and follows no redirect to another origin.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client

from quire.server.tool_servers.tool_limits import MAX_MESSAGE_BYTES

Streams = tuple[object, object]  # of the `mcp` package, which types them by private protocols

_CONNECT_TIMEOUT_S = 10.0
_EVENTS = "text/event-stream"


@asynccontextmanager
async def http_streams(url: str, token: str | None, timeout_s: float) -> AsyncIterator[Streams]:
    """Yield the streams of messages to and from a URL.

    Args:
        url: The URL.
        token: Bearer token, if it needs one.
        timeout_s: Seconds for which the server may send nothing.
    """
    headers = {"accept-encoding": "identity"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    client = httpx2.AsyncClient(
        headers=headers,
        timeout=httpx2.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
        transport=BoundedTransport(httpx2.AsyncHTTPTransport()),
        trust_env=False,
    )
    streams = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES)
    async with client, streams as (read_stream, write_stream):
        yield read_stream, write_stream


class BoundedTransport(httpx2.AsyncBaseTransport):
    """A transport whose responses have at most so many bytes; each event of a stream is bounded.

    Args:
        inner: Transport that sends the requests.
        max_bytes: Largest size of a response.
    """

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            StreamError: The response is compressed, though it was not to be.
        """
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.StreamError("the response is compressed, which was not asked for")
        is_events = response.headers.get("content-type", "").lower().startswith(_EVENTS)
        if not is_events and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _BoundedStream(response.stream, self._max_bytes)
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in self._inner:
            num_bytes += len(piece)
            if num_bytes > self._max_bytes:
                raise httpx2.StreamError(f"the response is larger than {self._max_bytes} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
