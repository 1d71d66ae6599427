"""The reader of each notation of calls."""

import re
from functools import cache

from quire_tool_parsers.argument_types import ArgumentTypes
from quire_tool_parsers.brace_reader import BraceReader
from quire_tool_parsers.call_format import CallFormat, Notation
from quire_tool_parsers.call_reader import CallReader
from quire_tool_parsers.header_reader import HeaderReader
from quire_tool_parsers.json_reader import JsonReader
from quire_tool_parsers.prompt_ids import id_pattern
from quire_tool_parsers.python_reader import PythonReader
from quire_tool_parsers.tagged_reader import TaggedReader


def notation_of(form: CallFormat, first: str) -> Notation | None:
    """Return the notation of a call that begins with a character; None if it begins none."""
    for notation in form.notations:
        if _begins(notation, first):
            return notation
    return None


def _begins(notation: Notation, first: str) -> bool:
    match notation:
        case "json":
            return first == "{"
        case "braces":
            return first.isalnum() or first in "_:"
        case "python":
            return first.isalnum() or first == "_"
    return first.isalnum() or first in "_\"'"


def new_reader(form: CallFormat, first: str, types: ArgumentTypes) -> CallReader | None:
    """Return a reader of a call that begins with a character; None if no call begins so.

    Args:
        form: Format of the call.
        first: Its first character that is no blank.
        types: Types of arguments.
    """
    match notation_of(form, first):
        case "json":
            return JsonReader(form.keys, types.names)
        case "header":
            ids = id_pattern(form.call_ids.text)
            followers = form.section_open + form.section_close + form.call_open + form.call_close
            pattern = _pattern(form.header)
            return HeaderReader(pattern, form.header_markers, followers, types, ids)
        case "tagged" if form.tags is not None:
            closers = (*form.call_close, *form.section_close)
            openers = (*form.call_open, *form.section_open)
            return TaggedReader(form.tags, closers, openers, types)
        case "python":
            return PythonReader()
        case "braces":
            return BraceReader(form.quote, types)
    return None


@cache
def _pattern(header: str) -> re.Pattern[str]:
    return re.compile(header, re.DOTALL)
