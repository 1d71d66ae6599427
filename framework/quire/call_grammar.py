"""How an answer of tool calls is written: a tool parser says it, a backend carries it out."""

from typing import Any

import msgspec


class SchemaPiece(msgspec.Struct, frozen=True):
    """A piece of a call that is JSON: whatever satisfies the schema."""

    schema: dict[str, Any] | bool


class CallShape(msgspec.Struct, frozen=True):
    """How a call of one tool is written, from its first character to its last.

    Attributes:
        tool: The tool's name, for error messages.
        pieces: Texts as they stand, and JSON by its schema, one behind the other.
    """

    tool: str
    pieces: tuple[str | SchemaPiece, ...]


class CallGrammar(msgspec.Struct, frozen=True):
    """A whole answer that is one call or several. The structured-output backend carries it out.

    Attributes:
        shapes: Each call has one of these.
        separator: What stands between two calls; None if the answer is exactly one.
    """

    shapes: tuple[CallShape, ...]
    separator: str | None = None
