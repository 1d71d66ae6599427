"""A tool server as a request names it: its label, its tools, and which calls need approval."""

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from quire.errors import InvalidRequestError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.tool_servers.remote_tool import RemoteTool

MCP = "mcp"  # type of a tool, and of a choice among tools
_NEUTRAL: dict[str, Any] = {  # fields that ask for nothing -> their values
    "allowed_callers": ["direct"],
    "defer_loading": False,
}
_ADDRESSES = ("server_url", "connector_id", "tunnel_id", "authorization", "headers")
_FIELDS = (
    "type", "server_label", "server_description", "allowed_tools", "require_approval",
    *_ADDRESSES, *_NEUTRAL,
)  # fmt: skip


class ToolFilter(msgspec.Struct, frozen=True):
    """Some tools of a server.

    Attributes:
        names: Their names; None: any.
        is_read_only: Whether the server says that they change nothing; None: either.
    """

    names: tuple[str, ...] | None = None
    is_read_only: bool | None = None

    def matches(self, tool: RemoteTool) -> bool:
        """Whether a tool is one of them."""
        return (self.names is None or tool.name in self.names) and (
            self.is_read_only is None or self.is_read_only == tool.is_read_only
        )


class RequestedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool server of a request.

    Attributes:
        label: Its name on the command line.
        place: Index among the tools of the request.
        allowed: Tools that the model may call.
        always: Tools whose calls need approval; None: not given.
        never: Tools whose calls need none; None: not given.
    """

    label: str
    place: int
    allowed: ToolFilter
    always: ToolFilter | None = None
    never: ToolFilter | None = None

    def needs_approval(self, tool: RemoteTool) -> bool:
        """Whether calls of a tool need approval; they do if nothing is said of it."""
        if self.always is not None and self.always.matches(tool):
            return True
        if self.never is not None and self.never.matches(tool):
            return False
        return self.always is None or self.never is not None


def requested_servers(
    tools: Sequence[dict[str, Any]] | None, labels: Collection[str], unknown: UnknownFields
) -> list[RequestedServer]:
    """Return the tool servers among the tools of a request.

    Args:
        tools: Tools of the request.
        labels: Tool servers that the operator has listed.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: One of them is not listed, is named twice, or has an address of the
            client's; `param` is its path.
        UnknownFieldError: One of them has a field that does not exist.
    """
    found: list[RequestedServer] = []
    for place, tool in enumerate(tools or ()):
        if tool.get("type") == MCP:
            server = _server(tool, place, labels, unknown)
            if server.label in [other.label for other in found]:
                raise _invalid(f"tools[{place}].server_label", f"{server.label!r} is given twice")
            found.append(server)
    return found


def _server(
    tool: dict[str, Any], place: int, labels: Collection[str], unknown: UnknownFields
) -> RequestedServer:
    where = f"tools[{place}]"
    given = {name: value for name, value in tool.items() if value is not None}
    if not labels:
        raise InvalidRequestError(
            f"{where}: the tool 'mcp' is not supported, as this server has no tool servers; its "
            "operator lists them by --tool-server",
            param=f"{where}.type",
        )
    unknown.check(given, _FIELDS, where)
    for name in _ADDRESSES:
        if name in given:
            raise _invalid(
                f"{where}.{name}",
                "is not supported: this server connects only to the tool servers that its operator "
                f"has listed; leave it out, and send server_label, one of {', '.join(labels)}",
            )
    for name, value in _NEUTRAL.items():
        if given.get(name, value) != value:
            raise _invalid(f"{where}.{name}", "is not supported; leave it out")
    label = given.get("server_label")
    if not isinstance(label, str) or label not in labels:
        raise _invalid(
            f"{where}.server_label", f"must be one of {', '.join(labels)}, got {label!r:.80}"
        )
    always, never = _approval(given.get("require_approval"), f"{where}.require_approval", unknown)
    allowed = _filter(given.get("allowed_tools"), f"{where}.allowed_tools", unknown)
    return RequestedServer(label=label, place=place, allowed=allowed, always=always, never=never)


def _approval(
    given: object, where: str, unknown: UnknownFields
) -> tuple[ToolFilter | None, ToolFilter | None]:
    """Return the tools that always need approval, and those that never do."""
    if given is None or given == "always":
        return ToolFilter(), None
    if given == "never":
        return None, ToolFilter()
    if not isinstance(given, dict):
        raise _invalid(where, f"must be always, never, or an object of both, got {given!r:.80}")
    unknown.check(given, ("always", "never"), where)
    always, never = (
        None if given.get(name) is None else _filter(given[name], f"{where}.{name}", unknown)
        for name in ("always", "never")
    )
    return always, never


def _filter(given: object, where: str, unknown: UnknownFields) -> ToolFilter:
    if given is None:
        return ToolFilter()
    if isinstance(given, dict):
        unknown.check(given, ("tool_names", "read_only"), where)
        names, read_only = given.get("tool_names"), given.get("read_only")
        if read_only is not None and not isinstance(read_only, bool):
            raise _invalid(f"{where}.read_only", f"must be true or false, got {read_only!r:.80}")
        return ToolFilter(_names(names, f"{where}.tool_names"), read_only)
    return ToolFilter(_names(given, where))


def _names(given: object, where: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise _invalid(where, f"must be a list of names, got {given!r:.80}")
    return tuple(given)


def _invalid(where: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where} {message}", param=where)
