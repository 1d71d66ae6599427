"""Events of the stream of a response for tools that the server calls."""

import msgspec


class _ToolEvent(msgspec.Struct, kw_only=True):
    sequence_number: int
    output_index: int
    item_id: str


class McpListToolsInProgress(_ToolEvent, tag="response.mcp_list_tools.in_progress"):
    """The tools of a server are being listed."""


class McpListToolsCompleted(_ToolEvent, tag="response.mcp_list_tools.completed"):
    """The tools of a server are listed."""


class McpListToolsFailed(_ToolEvent, tag="response.mcp_list_tools.failed"):
    """The tools of a server could not be listed."""


class McpCallInProgress(_ToolEvent, tag="response.mcp_call.in_progress"):
    """A call has begun."""


class McpArgumentsDelta(_ToolEvent, kw_only=True, tag="response.mcp_call_arguments.delta"):
    """A piece of a call's arguments."""

    delta: str


class McpArgumentsDone(_ToolEvent, kw_only=True, tag="response.mcp_call_arguments.done"):
    """All arguments of a call."""

    arguments: str


class McpCallCompleted(_ToolEvent, tag="response.mcp_call.completed"):
    """A call has an output."""


class McpCallFailed(_ToolEvent, tag="response.mcp_call.failed"):
    """A call failed."""


McpEvent = (
    McpListToolsInProgress
    | McpListToolsCompleted
    | McpListToolsFailed
    | McpCallInProgress
    | McpArgumentsDelta
    | McpArgumentsDone
    | McpCallCompleted
    | McpCallFailed
)
