"""A tool that a server offers, in bounds before anything uses it."""

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from quire.errors import ToolServerError
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


def bounded_tools(server: str, tools: Iterable[RemoteTool]) -> tuple[RemoteTool, ...]:
    """Return the tools that can be used; one that is too large or has no name is left out.

    Args:
        server: Name of the server, for messages.
        tools: What it offers.

    Raises:
        ToolServerError: All tools together are too many, or too large.
    """
    found: dict[str, RemoteTool] = {}
    num_bytes = 0
    for tool in tools:
        size = len(msgspec.json.encode(tool))
        num_bytes += size
        if len(found) >= MAX_TOOLS or num_bytes > MAX_LISTING_BYTES:
            raise ToolServerError(
                f"the tool server {server} offers more than {MAX_TOOLS} tools, or descriptions and "
                f"schemas of more than {MAX_LISTING_BYTES} bytes"
            )
        if size > MAX_TOOL_BYTES or not tool.name or tool.name in found:
            logger.warning(
                "the tool %.100r of the tool server %s is left out: %s",
                tool.name,
                server,
                f"its description and schema are larger than {MAX_TOOL_BYTES} bytes"
                if size > MAX_TOOL_BYTES
                else "its name is empty, or another one has it",
            )
            continue
        found[tool.name] = tool
    return tuple(found.values())
