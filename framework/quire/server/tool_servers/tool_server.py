"""One tool server: its connection, which is made again when it is lost, its tools, and calls.

One task holds the connection, as the `mcp` package wants it to end where it began. Calls are made
by other tasks, and are never repeated: a call that broke off may have had its effect. An error is
the outcome of its call alone: the connection ends only when no more messages come.
"""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    Implementation,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)

from quire import __version__
from quire.errors import ToolServerError
from quire.server.tool_servers.http_transport import http_streams
from quire.server.tool_servers.incoming_messages import watched
from quire.server.tool_servers.remote_tool import RemoteTool, ToolListing
from quire.server.tool_servers.stdio_transport import ServerProcess
from quire.server.tool_servers.tool_limits import (
    MAX_CALLS_AT_ONCE,
    MAX_LISTING_AGE_S,
    MAX_LISTING_PAGES,
    START_TIMEOUT_S,
    ToolLimits,
)
from quire.server.tool_servers.tool_outcome import (
    ToolOutcome,
    failed,
    failed_in_tool,
    succeeded,
)
from quire.server.tool_servers.tool_server_address import ToolServerAddress

logger = logging.getLogger(__name__)

FIRST_DELAY_S, LAST_DELAY_S = 0.5, 60.0  # between two attempts to connect
_LABEL_GAPS = re.compile(r"[^A-Za-z0-9_-]+")
# Codes of errors that the `mcp` package makes itself, whose messages may have addresses:
_OUR_CODES = (CONNECTION_CLOSED, INVALID_REQUEST, PARSE_ERROR)
_MAX_REASON = 1000  # characters


class ToolServer:
    """A tool server; used in one event loop.

    Args:
        address: Where it is.
        limits: Limits of calls.

    Attributes:
        label: Name that requests use; empty before it is connected, if the operator gave none.
    """

    def __init__(self, address: ToolServerAddress, limits: ToolLimits) -> None:
        self._address = address
        self._limits = limits
        self.label = address.label or ""
        self._client: Client | None = None
        self._tools: tuple[RemoteTool, ...] = ()
        self._is_stale = False  # the list of tools has changed
        self._listed_s = 0.0  # when they were listed
        self._failure = "it is not started"
        self._settled = asyncio.Event()  # no attempt to connect is under way
        self._lost = asyncio.Event()
        self._process: ServerProcess | None = None
        self._listing: asyncio.Task[None] | None = None
        self._heard_s = 0.0  # when the last message came
        self._room = asyncio.Semaphore(MAX_CALLS_AT_ONCE)

    @property
    def shown(self) -> str:
        """Name for messages."""
        return repr(self.label) if self.label else self._address.shown

    async def keep_connected(self) -> None:
        """Connect, and connect again whenever the connection is lost, until cancelled."""
        delay_s = 0.0
        while True:
            await asyncio.sleep(delay_s)
            self._settled.clear()
            lasted_s = await self._one_connection()
            was_long = lasted_s is not None and lasted_s > LAST_DELAY_S
            delay_s = FIRST_DELAY_S if was_long else _longer(delay_s)
            self._log_failure(delay_s)
            if lasted_s is None or delay_s > FIRST_DELAY_S:
                self._settled.set()  # otherwise what needs it waits for the next attempt

    async def _one_connection(self) -> float | None:
        """Connect until the connection is lost; return how long it lasted, None if it failed."""
        begin_s = None
        try:
            async with self._connected():
                begin_s = time.monotonic()
                self._settled.set()
                await self._lost.wait()
                self._failure = "the connection was lost"
        except Exception as error:  # noqa: BLE001 - whatever a server of others does
            self._failure = self._reason(error)
        finally:
            self._client = None
        return None if begin_s is None else time.monotonic() - begin_s

    async def check(self) -> None:
        """Wait for the first attempt to connect.

        Raises:
            ToolServerError: It failed; the message is the operator's.
        """
        await self._settled.wait()
        if self._client is None:
            raise ToolServerError(f"the tool server {self.shown} cannot be used: {self._failure}")

    async def tools(self) -> tuple[RemoteTool, ...]:
        """Return its tools, listed again if they have changed, or from time to time.

        Not all versions of the protocol say by themselves that the tools have changed.

        Raises:
            ToolServerError: It is not connected.
        """
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                client = await self._ready()
        except TimeoutError:
            raise self._not_connected() from None
        if self._is_stale or time.monotonic() - self._listed_s > MAX_LISTING_AGE_S:
            await asyncio.shield(self._listing_of(client))
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call a tool; every failure is an outcome. Cancelling it cancels the call."""
        max_bytes, timeout_s = self._limits.max_bytes, self._limits.timeout_s
        try:
            async with asyncio.timeout(timeout_s + 1), self._room:  # of all rounds of one call
                client = await self._ready()
                result = await client.call_tool(name, arguments, read_timeout_seconds=timeout_s)
        except ToolServerError as error:
            return failed(str(error), CONNECTION_CLOSED, max_bytes)
        except TimeoutError:
            return failed(self._too_long(), REQUEST_TIMEOUT, max_bytes)
        except MCPError as error:
            return self._refused(name, error)
        except Exception as error:  # noqa: BLE001 - whatever a server of others does
            self._log_call(name, error)
            message = "the tool server failed: its response is invalid"
            return failed(message, INTERNAL_ERROR, max_bytes)
        text = _text_of(result)
        return failed_in_tool(text, max_bytes) if result.is_error else succeeded(text, max_bytes)

    def _refused(self, name: str, error: MCPError) -> ToolOutcome:
        """Return the outcome of a call that has an error of the protocol as its response."""
        max_bytes = self._limits.max_bytes
        if error.code == REQUEST_TIMEOUT:
            return failed(self._too_long(), REQUEST_TIMEOUT, max_bytes)
        self._log_call(name, error)
        if error.code in _OUR_CODES:
            message = "the tool server failed: the call has no valid response"
        else:
            message = f"the tool server failed: {error.message}"
        return failed(message, error.code, max_bytes)

    async def _ready(self) -> Client:
        """Return the client, perhaps after an attempt to connect that is under way.

        Raises:
            ToolServerError: It is not connected.
        """
        await self._settled.wait()
        if self._client is None:
            raise self._not_connected()
        return self._client

    def _not_connected(self) -> ToolServerError:
        """Return the error for clients; what is wrong is for the log alone."""
        return ToolServerError(f"the tool server {self.shown} is not connected at present")

    def _lose(self) -> None:
        """Give the connection up; what needs one waits for the next attempt."""
        if self._client is not None:
            self._client = None
            self._settled.clear()
        self._lost.set()

    def _listing_of(self, client: Client) -> asyncio.Task[None]:
        """Return the task that lists the tools, one for all requests that wait for it."""
        if self._listing is None or self._listing.done():
            self._listing = asyncio.create_task(self._list_again(client))
        return self._listing

    async def _list_again(self, client: Client) -> None:
        """List the tools; if that fails, the known ones stay for a while.

        A server that sent nothing all the time does not work any more, and is connected again.
        """
        begin_s = time.monotonic()
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._list(client)
        except Exception as error:  # noqa: BLE001 - whatever a server of others does
            logger.warning(
                "the tool server %s cannot list its tools: %s", self.shown, self._reason(error)
            )
            self._listed_s = time.monotonic()
            if _is_timeout(error) and self._heard_s < begin_s and client is self._client:
                self._lose()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Connect, and list the tools."""
        self._lost.clear()
        client = Client(
            watched(self._transport(), self.shown, self._hear_any, self._lose),
            client_info=Implementation(name="quire", version=__version__),
            read_timeout_seconds=START_TIMEOUT_S,
            message_handler=self._hear,
            cache=None,
        )
        async with asyncio.timeout(START_TIMEOUT_S) as limit, client:
            self.label = self.label or _label_of(client.server_info)
            await self._list(client)
            limit.reschedule(None)
            self._client = client
            yield

    def _transport(self) -> AbstractAsyncContextManager[Any]:
        address, max_bytes = self._address, self._limits.message_bytes
        if address.url is not None:
            timeout_s = self._limits.timeout_s + 1
            return http_streams(address.url, address.token, timeout_s, max_bytes, self._lose)
        self._process = ServerProcess(self.shown, address.command, address.environment, max_bytes)
        return self._process.connected()

    async def _list(self, client: Client) -> None:
        self._is_stale = False
        listing = ToolListing(self.shown)
        cursor: str | None = None
        for _ in range(MAX_LISTING_PAGES):
            page = await client.list_tools(cursor=cursor)
            listing.add(_remote(tool) for tool in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        self._tools = listing.tools
        self._listed_s = time.monotonic()

    async def _hear(self, message: object) -> None:
        """Take note of a message that nothing waits for."""
        if isinstance(message, ToolListChangedNotification):
            self._is_stale = True

    def _hear_any(self) -> None:
        self._heard_s = time.monotonic()

    def _reason(self, error: Exception) -> str:
        """Return what went wrong, in one line for the operator."""
        leaf = _leaf(error)
        text = "it does not respond in time" if _is_timeout(leaf) else str(leaf)
        words = "" if self._process is None else self._process.last_words
        found = f"{text or type(leaf).__name__}{f' ({words})' if words else ''}"
        return " ".join(found.split())[:_MAX_REASON]

    def _log_call(self, name: str, error: Exception) -> None:
        logger.warning(
            "a call of the tool %.100r of the tool server %s failed: %s",
            name,
            self.shown,
            self._reason(error),
        )

    def _log_failure(self, delay_s: float) -> None:
        logger.warning(
            "the tool server %s is not connected: %s; the next attempt is in %g s",
            self.shown,
            self._failure,
            delay_s,
        )

    def _too_long(self) -> str:
        return f"the call took longer than {self._limits.timeout_s:g} seconds and was cancelled"


def _longer(delay_s: float) -> float:
    return min(LAST_DELAY_S, max(FIRST_DELAY_S, 2 * delay_s))


def _leaf(error: BaseException) -> BaseException:
    """Return the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_timeout(error: BaseException) -> bool:
    leaf = _leaf(error)
    return isinstance(leaf, TimeoutError) or (
        isinstance(leaf, MCPError) and leaf.code == REQUEST_TIMEOUT
    )


def _label_of(info: Implementation | None) -> str:
    label = _LABEL_GAPS.sub("-", "" if info is None else info.name).strip("-_")[:64]
    if not label:
        raise ToolServerError("it does not say its name; write NAME=URL_OR_COMMAND")
    return label


def _remote(tool: Tool) -> RemoteTool:
    annotations = tool.annotations
    return RemoteTool(
        tool.name,
        tool.description,
        tool.input_schema,
        None
        if annotations is None
        else annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
    )


def _text_of(result: CallToolResult) -> str:
    """Return the content of a result as text; what is no text is named."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(_text_of_block(block) for block in result.content)


def _text_of_block(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case EmbeddedResource():
            return f"[a resource that is no text: {block.resource.uri}]"
        case ResourceLink():
            return f"[a resource: {block.uri}]"
        case _:
            return f"[{block.type} of the type {block.mime_type}, which this server does not read]"
