"""Tools of tool servers for responses: what each response makes of those that it names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from quire.frontend.unknown_fields import UnknownFields
from quire.server.observe.tool_call_metrics import ToolCallMetrics
from quire.server.routes.responses.mcp.approvals import (
    ApprovedCall,
    RunApprovals,
    approved_calls,
)
from quire.server.routes.responses.mcp.offered_tools import (
    NO_OFFERED_TOOLS,
    OfferedTools,
    offered_tools,
)
from quire.server.routes.responses.mcp.requested_server import requested_servers
from quire.server.routes.responses.mcp.tool_calls import ToolCalls
from quire.server.routes.responses.mcp.tool_rounds import NextTurn, ToolRounds
from quire.server.tool_servers.tool_servers import ToolServers
from quire.server.wire.responses import ResponseBody

Item = dict[str, Any]


class ToolContext(NamedTuple):
    """What the conversation so far says of tools of tool servers.

    Attributes:
        approved: Calls that the client has approved, and that have not run.
        known: Labels of the servers whose tools are listed.
    """

    approved: list[ApprovedCall]
    known: list[str]


class ServerTools:
    """Tools of the tool servers of this server.

    Args:
        servers: The tool servers.
        metrics: Where calls are counted.
    """

    def __init__(self, servers: ToolServers, metrics: ToolCallMetrics) -> None:
        self._servers = servers
        self._metrics = metrics

    async def offered(self, body: ResponseBody, unknown: UnknownFields) -> OfferedTools:
        """Return the tools of tool servers that a request offers the model.

        Raises:
            InvalidRequestError: It names a server or a tool that there is not.
            UnknownFieldError: An object has a field that does not exist.
        """
        requested = requested_servers(body.tools, self._servers.labels, unknown)
        if not requested:
            return NO_OFFERED_TOOLS
        names = [tool.get("name") for tool in body.tools or ()]
        functions = [name for name in names if isinstance(name, str)]
        return await offered_tools(requested, self._servers, functions)

    def rounds(
        self,
        body: ResponseBody,
        offered: OfferedTools,
        context: ToolContext,
        next_turn: NextTurn,
        places: Sequence[int],
        run_approvals: RunApprovals,
    ) -> ToolRounds | None:
        """Return the rounds of a response; None if its model is offered no tools of tool servers.

        Args:
            body: Body of the request.
            offered: What it offers.
            context: What the conversation says of tools.
            next_turn: Function that prepares a turn after calls.
            places: Index that each tool of a chat has in the request.
            run_approvals: Calls of the stored responses before that were approved and run.
        """
        if not offered.servers:
            return None
        calls = ToolCalls(self._servers, self._metrics, body.max_tool_calls)
        max_rounds = self._servers.limits.max_rounds
        return ToolRounds(
            offered,
            calls,
            context.approved,
            context.known,
            max_rounds,
            next_turn,
            places,
            run_approvals,
        )


def tool_context(
    previous: Sequence[Item], own: Sequence[Item], offered: OfferedTools
) -> ToolContext:
    """Return what a conversation says of tools; its items are checked already.

    Args:
        previous: Items of previous responses.
        own: Items of the request.
        offered: What the request offers the model.

    Raises:
        InvalidRequestError: The request approves a call that it does not allow.
    """
    items = [*previous, *own]
    known = [
        item["server_label"]
        for item in items
        if item.get("type") == "mcp_list_tools" and item.get("error") is None
    ]
    return ToolContext(approved_calls(items, len(previous), offered), known)


def choice_after_calls(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return the choice of tools once the model has called one, so that it may also respond."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return choice | {"mode": "auto"}
    return choice if choice == "none" else None
