"""Runs calls of tools of tool servers, several at a time, and counts them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from quire.frontend.random_bytes import random_bytes
from quire.server.observe.tool_call_metrics import ToolCallMetrics
from quire.server.tool_servers.tool_outcome import ToolOutcome, failed
from quire.server.tool_servers.tool_servers import ToolServers
from quire.server.wire.mcp_items import McpCallItem

MAX_CALLS = 128  # of one response
MAX_AT_ONCE = 8
_INVALID_PARAMS = -32602  # of JSON-RPC
_INVALID_REQUEST = -32600


class RunnableCall(msgspec.Struct, frozen=True):
    """A call in the output that can be run.

    Attributes:
        index: Index of its item in the output.
        item: The item as it begins.
    """

    index: int
    item: McpCallItem


def new_call(label: str, name: str, arguments: str, request_id: str | None = None) -> McpCallItem:
    """Return the item of a call that has no result yet.

    Args:
        label: Name of the server.
        name: Name of the tool.
        arguments: JSON of its arguments.
        request_id: Id of the item that asked the client for approval.
    """
    return McpCallItem(
        id=f"mcp_{random_bytes.hex(16)}",
        status="in_progress",
        server_label=label,
        name=name,
        arguments=arguments,
        approval_request_id=request_id,
    )


class ToolCalls:
    """Calls of one response.

    Args:
        servers: The tool servers.
        metrics: Where calls are counted.
        max_calls: Largest number of calls; the others fail.

    Attributes:
        num_calls: Number of calls that were run.
    """

    def __init__(
        self, servers: ToolServers, metrics: ToolCallMetrics, max_calls: int | None
    ) -> None:
        self._servers = servers
        self._metrics = metrics
        self._max_calls = MAX_CALLS if max_calls is None else min(max_calls, MAX_CALLS)
        self.num_calls = 0

    async def run(
        self, calls: Sequence[RunnableCall]
    ) -> AsyncGenerator[tuple[RunnableCall, ToolOutcome]]:
        """Run calls; yield each with its outcome as it ends. Closing it cancels those that run."""
        room = asyncio.Semaphore(MAX_AT_ONCE)
        waiting = {asyncio.create_task(self._run(call, room)): call for call in calls}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda each: waiting[each].index):
                    yield waiting[task], task.result()
                    del waiting[task]
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _run(self, call: RunnableCall, room: asyncio.Semaphore) -> ToolOutcome:
        item, max_bytes = call.item, self._servers.limits.max_bytes
        if self.num_calls >= self._max_calls:
            message = f"the call was not run: a response may have {self._max_calls} calls of tools"
            return failed(message, _INVALID_REQUEST, max_bytes)
        self.num_calls += 1
        arguments = _arguments(item.arguments)
        if arguments is None:
            return failed("the arguments are no JSON object", _INVALID_PARAMS, max_bytes)
        async with room:
            return await self._observed(item, arguments)

    async def _observed(self, item: McpCallItem, arguments: dict[str, Any]) -> ToolOutcome:
        began_s, end = time.monotonic(), "cancelled"
        try:
            outcome = await self._servers.call(item.server_label, item.name, arguments)
            end = "completed" if outcome.error is None else "failed"
            return outcome
        finally:
            self._metrics.add(item.server_label, end, time.monotonic() - began_s)


def _arguments(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call; none at all are an empty object."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return found if isinstance(found, dict) else None
