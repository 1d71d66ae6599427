"""Messages of a tool server, before the `mcp` package sees them.

The package would check outputs by the server's own schemas, whose regular expressions may hold the
interpreter for ever, and would refuse a whole list of tools for one of them that is broken. So it
gets lists of tools that are whole, without schemas of outputs.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, Tool
from pydantic import ValidationError

logger = logging.getLogger(__name__)

Incoming = SessionMessage | Exception
_FIELDS = ("name", "description", "inputSchema", "annotations")  # those that are used


class IncomingMessages:
    """The stream of messages of one connection, as the `mcp` package reads it.

    Args:
        inner: Stream of the transport.
        server: Name of the server, for the log.
        on_message: Function called when a message comes.
        on_end: Function called when no more messages come.
    """

    def __init__(
        self,
        inner: Any,
        server: str,
        on_message: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._server = server
        self._on_message = on_message
        self._on_end = on_end

    async def receive(self) -> Incoming:
        """Return the next message, or the error of one that is invalid."""
        return await self._read(self._inner.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        return await self._read(anext(self._inner))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _read(self, reading: Awaitable[Incoming]) -> Incoming:
        try:
            message = await reading
        except BaseException:
            self._on_end()
            raise
        self._on_message()
        return self._usable(message)

    def _usable(self, message: Incoming) -> Incoming:
        """Return a message whose list of tools, if it has one, has only tools that are whole."""
        if isinstance(message, SessionMessage) and isinstance(message.message, JSONRPCResponse):
            result = message.message.result
            if isinstance(tools := result.get("tools"), list):
                result["tools"] = [self._bare(tool) for tool in tools if self._is_whole(tool)]
        return message

    def _bare(self, tool: dict[str, Any]) -> dict[str, Any]:
        return {field: tool[field] for field in _FIELDS if field in tool}

    def _is_whole(self, tool: Any) -> bool:
        try:
            Tool.model_validate(self._bare(tool), by_name=False)
            if tool["inputSchema"].get("type") == "object":
                return True
        except (AttributeError, TypeError, ValidationError):
            pass
        name = tool.get("name") if isinstance(tool, dict) else None
        logger.warning(
            "the tool %.100r of the tool server %s is left out: it has no name, or no schema of an "
            "object",
            name,
            self._server,
        )
        return False


Streams = tuple[IncomingMessages, Any]


@asynccontextmanager
async def watched(
    transport: AbstractAsyncContextManager[tuple[Any, Any]],
    server: str,
    on_message: Callable[[], None],
    on_end: Callable[[], None],
) -> AsyncIterator[Streams]:
    """Yield the streams of a transport; what it reads is made usable.

    Args:
        transport: The transport.
        server: Name of the server, for the log.
        on_message: Function called when a message comes.
        on_end: Function called when no more messages come.
    """
    async with transport as (read_stream, write_stream):
        yield IncomingMessages(read_stream, server, on_message, on_end), write_stream
