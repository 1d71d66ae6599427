"""Completions of a family of tool calls, parsed in one piece, by characters and in long pieces."""

import json
from collections.abc import Sequence
from typing import Any

from quire.plugins.registry import import_reference
from quire.testing.tool_parsing import ReadCompletion, read_events

LENGTHS = (1, 2, 3, 7, 16)  # characters of a delta


def read_calls(
    family: str, text: str, tools: Sequence[dict[str, Any]] = ()
) -> tuple[str, list[tuple[str, Any]]]:
    """Return the content and the calls of a completion, and check that no split changes them.

    Args:
        family: Name of the parser.
        text: Text that the model generated.
        tools: OpenAI's `function` objects.
    """
    whole = _read(family, [text], tools)
    for length in LENGTHS:
        deltas = [text[start : start + length] for start in range(0, len(text), length)]
        assert _read(family, deltas, tools) == whole, f"deltas of {length} give another result"
    return whole.content, [(name, json.loads(arguments)) for name, arguments in whole.calls]


def _read(family: str, pieces: Sequence[str], tools: Sequence[dict[str, Any]]) -> ReadCompletion:
    parser = import_reference(f"quire_tool_parsers.families:{family}", "the parser").for_tools(
        tools
    )
    events = [event for piece in pieces for event in parser.feed(piece)]
    completion = read_events([*events, *parser.close()])
    completion.num_unfinished = 0  # a call that breaks off may be announced or not
    return completion
