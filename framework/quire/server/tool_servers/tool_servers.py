"""All tool servers, in a thread of their own: what they send never holds up the HTTP server."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.tool_servers.remote_tool import RemoteTool
from quire.server.tool_servers.tool_limits import ToolLimits
from quire.server.tool_servers.tool_outcome import ToolOutcome
from quire.server.tool_servers.tool_server_address import ToolServerAddress, addresses_of

if TYPE_CHECKING:
    from quire.server.tool_servers.tool_server import ToolServer

T = TypeVar("T")


class ConnectedServer(Protocol):
    """A tool server as the thread uses it."""

    async def tools(self) -> tuple[RemoteTool, ...]:
        """Return its tools."""

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call a tool."""


class ToolServers:
    """Tool servers by their labels; used in the event loop of the HTTP server.

    Args:
        limits: Limits of calls.
        servers: Servers by label.
        loop: Event loop of their thread; None if there are no servers.
    """

    def __init__(
        self,
        limits: ToolLimits,
        servers: Mapping[str, ConnectedServer],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.limits = limits
        self._servers = servers
        self._loop = loop

    @classmethod
    def none(cls) -> "ToolServers":
        """Return those of a server that has none."""
        return cls(ToolLimits.of(ServerSettings()), {}, None)

    @property
    def labels(self) -> list[str]:
        """Names of all servers, in the order of the command line."""
        return [*self._servers]

    async def tools(self, label: str) -> tuple[RemoteTool, ...]:
        """Return the tools of a server.

        Raises:
            ToolServerError: It is not connected, or cannot list them.
        """
        return await self._run(self._servers[label].tools())

    async def call(self, label: str, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Call a tool; every failure is an outcome. Cancelling it cancels the call."""
        return await self._run(self._servers[label].call(name, arguments))

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            raise RuntimeError("there are no tool servers")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


@contextmanager
def started_tool_servers(settings: ServerSettings) -> Iterator[ToolServers]:
    """Connect to all tool servers that the settings list; disconnect at the end of the context.

    Raises:
        SettingsError: One of them is invalid, or the package `mcp` is missing.
        ToolServerError: One of them cannot be used.
    """
    addresses, limits = addresses_of(settings), ToolLimits.of(settings)
    if not addresses:
        yield ToolServers(limits, {}, None)
        return
    make = _maker(limits)
    thread = _ServerThread([make(address) for address in addresses])
    try:
        yield ToolServers(limits, thread.connect(), thread.loop)
    finally:
        thread.stop()


def _maker(limits: ToolLimits) -> "Callable[[ToolServerAddress], ToolServer]":
    """Return what makes a server; importing it takes long, and needs the package `mcp`."""
    try:
        from quire.server.tool_servers.tool_server import ToolServer
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"tool_server needs a package that is not installed ({error}); install it with "
            "`pip install 'quire[mcp]'`"
        ) from None
    return lambda address: ToolServer(address, limits)


class _ServerThread:
    """The thread of tool servers, and its event loop."""

    def __init__(self, servers: "list[ToolServer]") -> None:
        self._servers = servers
        self._tasks: list[asyncio.Task[None]] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tool-servers", daemon=True)
        self._thread.start()

    def connect(self) -> "dict[str, ToolServer]":
        """Connect to all servers at once, and return them by label.

        Raises:
            SettingsError: Two of them have the same name.
            ToolServerError: One cannot be used.
        """
        connected: Future[None] = asyncio.run_coroutine_threadsafe(self._connect(), self.loop)
        connected.result()
        found: dict[str, ToolServer] = {}
        for server in self._servers:
            if server.label in found:
                raise SettingsError(
                    f"tool_server: two servers have the name {server.label!r}; write "
                    "NAME=URL_OR_COMMAND"
                )
            found[server.label] = server
        return found

    def stop(self) -> None:
        """Disconnect from all servers, and end the thread."""
        ended = asyncio.run_coroutine_threadsafe(self._disconnect(), self.loop)
        ended.result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    async def _connect(self) -> None:
        self._tasks = [asyncio.create_task(server.keep_connected()) for server in self._servers]
        for server in self._servers:
            await server.check()

    async def _disconnect(self) -> None:
        """End all that runs: the connections, and calls of requests that are over."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        for task in others:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
