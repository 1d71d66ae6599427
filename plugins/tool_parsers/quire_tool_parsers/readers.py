"""The reader of each notation of calls."""

from functools import cache

from quire.interfaces.markers import Markers
from quire_tool_parsers.argument_types import ArgumentTypes
from quire_tool_parsers.brace_reader import BraceReader
from quire_tool_parsers.call_format import CallFormat, Notation
from quire_tool_parsers.call_reader import CallReader
from quire_tool_parsers.header_reader import BRACE, HeaderReader
from quire_tool_parsers.json_reader import JsonReader
from quire_tool_parsers.prompt_ids import id_pattern
from quire_tool_parsers.python_reader import PythonReader
from quire_tool_parsers.response_template.pattern import Pattern
from quire_tool_parsers.tag_markers import TagMarkers
from quire_tool_parsers.tagged_reader import TaggedReader

_NAME_FIRSTS = "_.-"  # beside letters and digits
_BEFORE_NAME: dict[Notation, str] = {"braces": ":", "header": "\"'", "tagged": "\"'"}


def notation_of(form: CallFormat, first: str) -> Notation | None:
    """Return the notation of a call that begins with a character; None if it begins none."""
    for notation in form.notations:
        if _begins(notation, first):
            return notation
    return None


def _begins(notation: Notation, first: str) -> bool:
    if notation == "json":
        return first == "{"
    return first.isalnum() or first in _NAME_FIRSTS or first in _BEFORE_NAME.get(notation, "")


class Readers:
    """Makes the readers of a format's calls.

    Args:
        form: Format of the calls.
    """

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        closers, openers = form.call_close + form.section_close, form.call_open + form.section_open
        self._header = Pattern(form.header)
        self._header_ends = Markers((*closers, *openers, BRACE))
        self._ids = id_pattern(form.call_ids.text)
        self._tag_markers = None if form.tags is None else TagMarkers(form.tags, closers, openers)

    def new(self, first: str, types: ArgumentTypes) -> CallReader | None:
        """Return a reader of a call that begins with a character; None if no call begins so.

        Args:
            first: First character of the call that is no blank.
            types: Types of arguments.
        """
        form = self._form
        match notation_of(form, first):
            case "json":
                return JsonReader(form.keys, types.names)
            case "header":
                markers = form.header_markers
                return HeaderReader(self._header, markers, self._header_ends, types, self._ids)
            case "tagged" if self._tag_markers is not None:
                return TaggedReader(self._tag_markers, types)
            case "python":
                return PythonReader()
            case "braces":
                return BraceReader(form.quote, types)
        return None


@cache
def readers_of(form: CallFormat) -> Readers:
    """Return the maker of readers of a format, built once for all completions."""
    return Readers(form)
