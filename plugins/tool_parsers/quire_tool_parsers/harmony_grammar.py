"""Grammars of calls of gpt-oss: messages to functions, behind a message of thinking or not.

A turn that calls a function has no message on `final`, so nothing but the call ends its thinking,
and the grammars begin with the turn.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    EitherPiece,
    SchemaPiece,
    TextPiece,
)

TRIGGER = "to=functions."
_THINKING = "<|channel|>analysis<|message|>"
_NEXT = "<|start|>assistant"
_CHANNEL = "<|channel|>commentary "
_JSON = "<|constrain|>json<|message|>"
_HEADERS = (f" {_JSON}", f"{_CHANNEL}{_JSON}", f"{_CHANNEL}json<|message|>")  # behind the recipient


def harmony_grammar(tools: Sequence[dict[str, Any]], *, at_least_one: bool) -> CallGrammar | None:
    """Return a grammar of one call of `tools`, which ends a completion of gpt-oss.

    Args:
        tools: OpenAI tool definitions, the `function` objects, all with `parameters`.
        at_least_one: Whether the completion is a call; otherwise one may end the completion.
    """
    if not tools:
        return None
    if at_least_one:
        return CallGrammar(tuple(_forced(tool) for tool in tools), covers_reasoning=True)
    shapes = tuple(shape for tool in tools for shape in _in_text(tool))
    return CallGrammar(shapes, triggers=(TRIGGER,), covers_reasoning=True)


def _forced(tool: dict[str, Any]) -> CallShape:
    """Return a call from the start of the turn on, which the prompt has opened."""
    thinking = (_THINKING, TextPiece(True, "<|end|>"), f"{_NEXT}{_CHANNEL}")
    start = EitherPiece(((_CHANNEL,), thinking))
    header = f"{TRIGGER}{tool['name']}{_HEADERS[0]}"
    return CallShape(tool["name"], (start, header, SchemaPiece(tool["parameters"])))


def _in_text(tool: dict[str, Any]) -> Iterator[CallShape]:
    for header in _HEADERS:
        recipient = f"{TRIGGER}{tool['name']}"
        yield CallShape(tool["name"], (f"{recipient}{header}", SchemaPiece(tool["parameters"])))
