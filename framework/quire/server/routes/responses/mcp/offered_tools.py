"""What the model is offered of the tool servers that a request names.

A tool is a function for the model. Its name is that of the tool, and the label of the server comes
before it if another tool or function has the same.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.errors import InvalidRequestError, ToolServerError
from quire.frontend.chat.tools.checked_tools import MAX_TOOLS
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.responses.mcp.requested_server import MCP, RequestedServer
from quire.server.tool_servers.remote_tool import RemoteTool
from quire.server.tool_servers.tool_servers import ToolServers
from quire.server.wire.http_errors import HTTPError
from quire.server.wire.retry_after import retry_headers

MAX_NAME = 64  # characters of a function's name
_CHOICE = ("type", "server_label", "name")  # fields of a choice
_DIGEST = 8
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool that the model may call.

    Attributes:
        label: Name of its server.
        tool: The tool.
        function: Name by which the model calls it.
        needs_approval: Whether the client must approve its calls.
    """

    label: str
    tool: RemoteTool
    function: str
    needs_approval: bool


class OfferedServer(msgspec.Struct, frozen=True):
    """A tool server of a request, with the tools that it allows.

    Attributes:
        requested: What the request says of it.
        tools: Its tools; none if it cannot be used.
        error: Why it cannot be used; None if it can.
    """

    requested: RequestedServer
    tools: tuple[RemoteTool, ...]
    error: str | None = None


class OfferedTools:
    """Tools of tool servers that the model may call in one response.

    Args:
        servers: Servers that the request names.
        functions: Names of the client's own functions.
    """

    def __init__(self, servers: Sequence[OfferedServer], functions: Sequence[str]) -> None:
        self.servers = tuple(servers)
        self._by_function = {tool.function: tool for tool in _named(servers, functions)}
        self._has_functions = bool(functions)
        self._by_tool = {(t.label, t.tool.name): t for t in self._by_function.values()}

    def __len__(self) -> int:
        return len(self._by_function)

    @property
    def function_names(self) -> dict[tuple[str, str], str]:
        """Names by which the model calls tools, by the label of the server and the tool's name."""
        return {key: tool.function for key, tool in self._by_tool.items()}

    @property
    def places(self) -> list[int]:
        """Index of the server of each tool among the tools of the request."""
        return [server.requested.place for server in self.servers for _ in server.tools]

    def by_function(self, name: str) -> OfferedTool | None:
        """Return the tool that the model calls by a name; None if it is no tool of a server."""
        return self._by_function.get(name)

    def allows(self, label: str, name: str) -> bool:
        """Whether the request allows a tool of a server, which may be out of use at present."""
        server = next((s for s in self.servers if s.requested.label == label), None)
        if server is None:
            return False
        names = server.requested.allowed.names
        if server.error is not None:
            return names is None or name in names
        return (label, name) in self._by_tool

    def chat_tools(self) -> list[dict[str, Any]]:
        """Return the tools in the shape of a chat."""
        return [
            {
                "type": "function",
                "function": {
                    "name": offered.function,
                    "description": offered.tool.description or "",
                    "parameters": offered.tool.input_schema,
                },
            }
            for offered in self._by_function.values()
        ]

    def choice_of_functions(
        self, choice: str | dict[str, Any] | None, unknown: UnknownFields
    ) -> Any:
        """Return a choice of tools in which tools of servers are functions.

        Args:
            choice: The choice.
            unknown: What happens to fields that do not exist.

        Raises:
            InvalidRequestError: It names a server or a tool that the request does not.
            HTTPError: It asks for a call, and only of servers that are out of use at present.
            UnknownFieldError: It has a field that does not exist.
        """
        if choice == "required" and not (self._by_function or self._has_functions):
            self._check_in_use()
        if not isinstance(choice, dict):
            return choice
        if choice.get("type") == MCP:
            functions = self._chosen(choice, "tool_choice", unknown)
            if choice.get("name") is not None:
                return functions[0]
            return {"type": "allowed_tools", "mode": "required", "tools": functions}
        tools = choice.get("tools")
        if choice.get("type") != "allowed_tools" or not isinstance(tools, list):
            return choice
        return self._allowed(choice, tools, unknown)

    def _allowed(self, choice: dict[str, Any], tools: list[Any], unknown: UnknownFields) -> Any:
        """Return a choice of allowed tools; servers that are out of use are left out.

        Raises:
            HTTPError: It asks for a call, and nothing else is left.
        """
        found: list[Any] = []
        unavailable: list[HTTPError] = []
        for i, tool in enumerate(tools):
            is_ours = isinstance(tool, dict) and tool.get("type") == MCP
            try:
                found += (
                    self._chosen(tool, f"tool_choice.tools[{i}]", unknown) if is_ours else [tool]
                )
            except HTTPError as error:
                unavailable.append(error)
        if unavailable and not found:
            if choice.get("mode") == "required":
                raise unavailable[0]
            if choice.get("mode") == "auto":
                return "none"
        return choice | {"tools": found}

    def _check_in_use(self) -> None:
        for server in self.servers:
            if server.error is not None:
                raise _out_of_use(server.error, "tool_choice")

    def _chosen(
        self, choice: Mapping[str, Any], where: str, unknown: UnknownFields
    ) -> list[dict[str, Any]]:
        """Return the functions of a server, or the one that is named.

        Raises:
            InvalidRequestError: There is no such server, or no such tool.
            HTTPError: The server is out of use at present.
        """
        given = [name for name, value in choice.items() if value is not None]
        unknown.check(given, _CHOICE, where)
        label, name = choice.get("server_label"), choice.get("name")
        server = next((s for s in self.servers if s.requested.label == label), None)
        if server is None:
            raise InvalidRequestError(
                f"{where}.server_label names {label!r:.80}, which is not among the tools",
                param=f"{where}.server_label",
            )
        found = [
            {"type": "function", "name": offered.function}
            for offered in self._by_function.values()
            if offered.label == label and name in (None, offered.tool.name)
        ]
        if not found and server.error is not None:
            raise _out_of_use(server.error, where)
        if not found:
            raise InvalidRequestError(
                f"{where}: the tool server {label!r}: it offers no tool {name or ''!r:.80} that is "
                "allowed",
                param=where,
            )
        return found


async def offered_tools(
    requested: Sequence[RequestedServer], servers: ToolServers, functions: Sequence[str]
) -> OfferedTools:
    """Return what the model is offered; a server that is out of use offers nothing.

    Args:
        requested: What the request names.
        servers: The tool servers.
        functions: Names of the client's own functions.

    Raises:
        InvalidRequestError: The request allows a tool that its server does not offer.
    """
    offered = [await _offered(server, servers) for server in requested]
    _check_number(offered)
    return OfferedTools(offered, functions)


def _out_of_use(error: str, where: str) -> HTTPError:
    """Return the error of a request that asks for a call which no tool server can run at present.

    Args:
        error: Why not, with the name of the server.
        where: Field that asks for it.
    """
    return HTTPError(
        503,
        f"{where} asks for a call, and {error}; try again later",
        code=ToolServerError.code,
        param=where,
        headers=retry_headers(),
    )


def _check_number(offered: Sequence[OfferedServer]) -> None:
    """Check that no server offers more tools than a request may have."""
    for server in offered:
        if len(server.tools) > MAX_TOOLS:
            where = f"tools[{server.requested.place}]"
            raise InvalidRequestError(
                f"{where}: the tool server {server.requested.label!r} offers {len(server.tools)} "
                f"tools, and a request may have {MAX_TOOLS}; name some of them in allowed_tools",
                param=where,
            )


async def _offered(requested: RequestedServer, servers: ToolServers) -> OfferedServer:
    try:
        tools = await servers.tools(requested.label)
    except ToolServerError as error:
        return OfferedServer(requested, (), str(error))
    names = [tool.name for tool in tools]
    for name in requested.allowed.names or ():
        if name not in names:
            where = f"tools[{requested.place}].allowed_tools"
            raise InvalidRequestError(
                f"{where}: the tool server {requested.label!r} offers no tool {name!r:.80}",
                param=where,
            )
    return OfferedServer(requested, tuple(t for t in tools if requested.allowed.matches(t)))


def _named(servers: Sequence[OfferedServer], functions: Sequence[str]) -> list[OfferedTool]:
    """Return all tools with names that differ from each other, and from the client's functions."""
    all_tools = [(server.requested, tool) for server in servers for tool in server.tools]
    counts = Counter([*functions, *(_function_name(tool.name) for _, tool in all_tools)])
    used, found = set(functions), list[OfferedTool]()
    for server, tool in all_tools:
        name = _function_name(tool.name)
        if counts[name] > 1:
            name = _function_name(f"{server.label}_{tool.name}")
        if name in used:
            name = _with_digest(name, f"{server.label} {tool.name}")
        used.add(name)
        found.append(OfferedTool(server.label, tool, name, server.needs_approval(tool)))
    return found


def _function_name(name: str) -> str:
    """Return a name with characters that functions may have, and no more of them."""
    allowed = _NO_NAME.sub("_", name)
    return allowed if len(allowed) <= MAX_NAME else _with_digest(allowed, name)


def _with_digest(name: str, whole: str) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{name[: MAX_NAME - _DIGEST - 1]}_{digest}"


NO_OFFERED_TOOLS = OfferedTools((), ())
