"""The calls of tools of tool servers in one response: how often, and how the model goes on."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from quire.frontend.random_bytes import random_bytes
from quire.server.routes.chat.chat_turn import ChatTurn
from quire.server.routes.responses.mcp.approvals import ApprovedCall, RunApprovals
from quire.server.routes.responses.mcp.offered_tools import OfferedTools
from quire.server.routes.responses.mcp.tool_calls import RunnableCall, ToolCalls
from quire.server.tool_servers.tool_outcome import ToolOutcome
from quire.server.wire.mcp_items import McpListToolsItem, McpTool
from quire.server.wire.responses import OutputItem

Item = dict[str, Any]
NextTurn = Callable[[Sequence[Sequence[Item]], int], Awaitable[ChatTurn | None]]


class ToolRounds:
    """The rounds of one response.

    Args:
        offered: Tools that the model may call.
        calls: Runs calls.
        approved: Calls to run before the model goes on.
        known: Labels of the servers whose tools are listed in the conversation already.
        max_rounds: Number of times that the model may call tools.
        next_turn: Function that prepares the next turn, from the items of each turn so far and the
            number of tokens that were generated; None: the response may have no more tokens.
        places: Index that each tool has in the request.
        run_approvals: Calls of the stored responses before that were approved and run.
    """

    def __init__(
        self,
        offered: OfferedTools,
        calls: ToolCalls,
        approved: Sequence[ApprovedCall],
        known: Sequence[str],
        max_rounds: int,
        next_turn: NextTurn,
        places: Sequence[int],
        run_approvals: RunApprovals,
    ) -> None:
        self.offered = offered
        self.approved = tuple(approved)
        self._calls = calls
        self._known = frozenset(known)
        self._num_left = max_rounds
        self._next_turn = next_turn
        self.places = tuple(places)
        self._run_approvals = run_approvals

    @property
    def num_calls(self) -> int:
        """Number of calls that were run."""
        return self._calls.num_calls

    @property
    def has_rounds_left(self) -> bool:
        """Whether the model may call tools once more."""
        return self._num_left > 0

    def claim(self) -> None:
        """Note that the approved calls are run.

        Raises:
            InvalidRequestError: One of them was run already.
        """
        self._run_approvals.claim(self.approved)

    def lists(self) -> list[McpListToolsItem]:
        """Return the items with the tools of each server that are not in the conversation yet."""
        return [
            McpListToolsItem(
                id=f"mcpl_{random_bytes.hex(16)}",
                server_label=server.requested.label,
                tools=[
                    McpTool(
                        name=tool.name,
                        description=tool.description,
                        input_schema=tool.input_schema,
                        annotations=tool.annotations,
                    )
                    for tool in server.tools
                ],
                error=server.error,
            )
            for server in self.offered.servers
            if server.error is not None or server.requested.label not in self._known
        ]

    async def run(
        self, calls: Sequence[RunnableCall]
    ) -> AsyncGenerator[tuple[RunnableCall, ToolOutcome]]:
        """Run the calls of a turn; yield each with its outcome as it ends."""
        self._num_left -= 1
        results = self._calls.run(calls)
        try:
            async for result in results:
                yield result
        finally:
            await results.aclose()

    async def next_turn(
        self, turns: Sequence[Sequence[OutputItem]], num_tokens: int
    ) -> ChatTurn | None:
        """Return the turn after results of calls; None if the response may have no more tokens.

        It raises what preparing a turn raises.

        Args:
            turns: Items of each turn so far.
            num_tokens: Number of tokens that were generated.
        """
        items = [[msgspec.to_builtins(item) for item in turn] for turn in turns]
        return await self._next_turn(items, num_tokens)
