"""Output items of OpenAI's Responses API for tools that the server calls."""

from typing import Any, Literal

import msgspec

from quire.server.tool_servers.tool_outcome import ToolError

McpCallStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class McpTool(msgspec.Struct, kw_only=True):
    """A tool of a tool server."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None = None


class McpListToolsItem(msgspec.Struct, kw_only=True, tag="mcp_list_tools"):
    """The tools of a server that the model may call."""

    id: str
    server_label: str
    tools: list[McpTool]
    error: str | None = None


class McpCallItem(msgspec.Struct, kw_only=True, tag="mcp_call"):
    """A call of a tool, with its output or its error."""

    id: str
    status: McpCallStatus
    server_label: str
    name: str
    arguments: str
    approval_request_id: str | None = None
    output: str | None = None
    error: ToolError | None = None


class McpApprovalRequestItem(msgspec.Struct, kw_only=True, tag="mcp_approval_request"):
    """A call that waits for the client's approval."""

    id: str
    server_label: str
    name: str
    arguments: str


McpItem = McpListToolsItem | McpCallItem | McpApprovalRequestItem
