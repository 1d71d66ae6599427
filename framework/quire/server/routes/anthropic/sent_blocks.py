"""Content blocks of requests: their types, their fields, and what is refused by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.unknown_fields import UnknownFields

Json = Mapping[str, Any]

BLOCKS: dict[str, frozenset[str]] = {  # type of a block -> its other fields
    "text": frozenset({"text", "cache_control", "citations"}),
    "thinking": frozenset({"thinking", "signature", "cache_control"}),
    "redacted_thinking": frozenset({"data", "cache_control"}),
    "tool_use": frozenset({"id", "name", "input", "cache_control", "caller", "toolset_name"}),
    "tool_result": frozenset(
        {"tool_use_id", "content", "is_error", "cache_control", "toolset_name"}
    ),
    "tool_reference": frozenset({"tool_name", "cache_control"}),
}
BLOCKS_OF = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "tool_result": ("text", "tool_reference"),
}
_TEXT_ONLY = "this model reads text; describe it in a text block"
_BY_ANTHROPIC = "this server runs no tools; leave the block out"
REFUSED_BLOCKS = {  # of Anthropic's models, or what they get from Anthropic's servers
    "image": _TEXT_ONLY,
    "document": "this model reads text; send the document's text in a text block",
    "search_result": "send its text in a text block",
    "browser_state": _TEXT_ONLY,
    "container_upload": "this server has no containers; leave the block out",
    "server_tool_use": _BY_ANTHROPIC,
    "web_search_tool_result": _BY_ANTHROPIC,
    "web_fetch_tool_result": _BY_ANTHROPIC,
    "code_execution_tool_result": _BY_ANTHROPIC,
    "bash_code_execution_tool_result": _BY_ANTHROPIC,
    "text_editor_code_execution_tool_result": _BY_ANTHROPIC,
    "tool_search_tool_result": _BY_ANTHROPIC,
    "advisor_tool_result": _BY_ANTHROPIC,
    "fallback": _BY_ANTHROPIC,
    "mcp_tool_listing": _BY_ANTHROPIC,
    "mcp_tool_use": _BY_ANTHROPIC,
    "mcp_tool_result": _BY_ANTHROPIC,
    "tool_addition": "send the tool in tools",
    "tool_removal": "leave the tool out of tools",
    "compaction": "shorten messages in the client, and leave the block out",
}


def checked_block(block: object, where: str, kinds: Sequence[str], unknown: UnknownFields) -> Json:
    """Return a block of one of some types, with no other fields than that has.

    Args:
        block: What was sent.
        where: Its path in the request.
        kinds: Types that it may have there.
        unknown: What happens to fields that do not exist.

    Raises:
        InvalidRequestError: It is no block, or has another type.
        UnknownFieldError: It has a field that does not exist.
    """
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        raise InvalidRequestError(
            f"{where} must be a block with a type, got {block!r:.100}", param=where
        )
    if kind not in kinds:
        raise _wrong_type(kind, where, kinds)
    check_fields(block, BLOCKS[kind], where, unknown)
    return block


def check_fields(
    given: Json, known: frozenset[str] | Sequence[str], where: str, unknown: UnknownFields
) -> None:
    """Refuse fields that do not exist; null asks for nothing."""
    for name, value in given.items():
        if name not in known and name != "type" and value is not None:
            unknown.handle(name, known, where)


def _wrong_type(kind: str, where: str, kinds: Sequence[str]) -> InvalidRequestError:
    param = f"{where}.type"
    if kind in REFUSED_BLOCKS:
        message = f"{param} {kind!r} is not supported: {REFUSED_BLOCKS[kind]}"
        return InvalidRequestError(message, param=param)
    return InvalidRequestError(
        f"{param} must be one of {', '.join(kinds)} here, got {kind!r:.100}", param=param
    )


def string_of(block: Json, name: str, where: str) -> str:
    """Return a field that must be a string.

    Raises:
        InvalidRequestError: It is none.
    """
    value = block.get(name)
    if not isinstance(value, str):
        path = f"{where}.{name}"
        raise InvalidRequestError(f"{path} must be a string, got {value!r:.100}", param=path)
    return value
