"""What a call of a tool gave: its output as text, cut at a number of bytes, or an error."""

from typing import Any, Literal

import msgspec

CUT_NOTE = "\n[cut off: the output has {} bytes]"


class ToolError(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a call failed, in the shapes of OpenAI's API.

    Attributes:
        type: Whether the tool itself failed, or the connection to its server.
        content: What the tool said.
        code: Code of the protocol.
        message: What happened.
    """

    type: Literal["mcp_tool_execution_error", "mcp_protocol_error"]
    content: list[dict[str, Any]] | None = None
    code: int | None = None
    message: str | None = None


class ToolOutcome(msgspec.Struct, frozen=True):
    """The end of a call.

    Attributes:
        text: Text for the model: the output, or what went wrong.
        error: The error; None if the call succeeded.
    """

    text: str
    error: ToolError | None = None


def succeeded(text: str, max_bytes: int) -> ToolOutcome:
    """Return the outcome of a call that has an output."""
    return ToolOutcome(cut(text, max_bytes))


def failed_in_tool(text: str, max_bytes: int) -> ToolOutcome:
    """Return the outcome of a call whose tool reports an error."""
    shown = cut(text, max_bytes) or "the tool failed, and did not say why"
    content = [{"type": "text", "text": shown}]
    return ToolOutcome(shown, ToolError(type="mcp_tool_execution_error", content=content))


def failed(message: str, code: int, max_bytes: int) -> ToolOutcome:
    """Return the outcome of a call that did not reach its end.

    Args:
        message: What happened.
        code: Code of JSON-RPC.
        max_bytes: Largest size of the message.
    """
    shown = cut(message, max_bytes)
    return ToolOutcome(shown, ToolError(type="mcp_protocol_error", code=code, message=shown))


def cut(text: str, max_bytes: int) -> str:
    """Return a text of at most so many bytes in UTF-8, with a note if some of it is missing.

    Half a character at the end is left out.
    """
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode("utf-8")
    note = CUT_NOTE.format(len(encoded))
    kept = encoded[: max(0, max_bytes - len(note.encode()))]
    return kept.decode("utf-8", "ignore") + note
