"""A tool that a server offers, in bounds before anything uses it."""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from quire.errors import InvalidRequestError, ToolServerError
from quire.frontend.chat.tool_schemas import check_schema
from quire.server.tool_servers.tool_limits import MAX_LISTING_BYTES, MAX_TOOL_BYTES, MAX_TOOLS

logger = logging.getLogger(__name__)


class RemoteTool(msgspec.Struct, frozen=True):
    """A tool of a server.

    Attributes:
        name: Name that the server knows.
        description: What it does, for the model.
        input_schema: JSON schema of its arguments, an object's.
        annotations: What the server says of it, such as `readOnlyHint`.
    """

    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether the server says that it changes nothing."""
        return (self.annotations or {}).get("readOnlyHint") is True


class ToolListing:
    """The tools of a server that can be used, in bounds while they are listed.

    Args:
        server: Name of the server, for messages.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._found: dict[str, RemoteTool] = {}
        self._num_bytes = 0

    @property
    def tools(self) -> tuple[RemoteTool, ...]:
        """The tools so far."""
        return tuple(self._found.values())

    def add(self, tools: Iterable[RemoteTool]) -> None:
        """Add tools; one that is too large or broken is left out, with a line in the log.

        Raises:
            ToolServerError: All tools together are too many, or too large.
        """
        for tool in tools:
            size = len(msgspec.json.encode(tool))
            self._num_bytes += size
            if len(self._found) >= MAX_TOOLS or self._num_bytes > MAX_LISTING_BYTES:
                raise ToolServerError(
                    f"the tool server {self._server} offers more than {MAX_TOOLS} tools, or "
                    f"descriptions and schemas of more than {MAX_LISTING_BYTES} bytes"
                )
            problem = self._problem(tool, size)
            if problem is None:
                self._found[tool.name] = tool
            else:
                logger.warning(
                    "the tool %.100r of the tool server %s is left out: %.300s",
                    tool.name,
                    self._server,
                    problem,
                )

    def _problem(self, tool: RemoteTool, size: int) -> str | None:
        """Return why a tool cannot be used; None if it can."""
        if size > MAX_TOOL_BYTES:
            return f"its description and schema are larger than {MAX_TOOL_BYTES} bytes"
        if not tool.name or tool.name in self._found:
            return "its name is empty, or another one has it"
        try:
            check_schema(tool.input_schema, "its schema")
        except InvalidRequestError as error:
            return str(error)
        return None
