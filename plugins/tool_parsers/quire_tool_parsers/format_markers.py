"""What is searched for around the calls of a format, built once for all completions."""

from functools import cache

from quire.interfaces.markers import Markers
from quire_tool_parsers.call_format import CallFormat
from quire_tool_parsers.readers import notation_of

BARE_OPENERS = ("{", "[")  # of a call in JSON, or a list of them


class FormatMarkers:
    """Markers of a format, by the states of its parser.

    Args:
        form: The format.

    Attributes:
        bare_openers: First characters of calls without a marker behind text.
        openers: What opens a section or a call.
        openers_or_close: The same, and what closes a section.
        gap: What is before, between and behind the calls of a section.
        gap_or_close: The same, and what closes a call.
        strays: Characters between two calls that do not belong there, and mean nothing.
        closers: What closes a call, by the number of closing markers before.
    """

    def __init__(self, form: CallFormat) -> None:
        possible = _bare_openers(form) if form.is_bare_anywhere else ()
        self.bare_openers = frozenset(each for each in possible if begins_call(form, each))
        self.openers = Markers({*form.section_open, *form.call_open, *self.bare_openers})
        self.openers_or_close = Markers({*self.openers.texts, *form.section_close})
        self.gap = Markers(
            {*form.section_open, *form.section_close, *form.call_open, *form.separators}
        )
        self.gap_or_close = Markers({*self.gap.texts, *form.call_close})
        self.strays = ",}" if "json" in form.notations else ","
        self.closers = [Markers(form.call_close[i:]) for i in range(len(form.call_close) + 1)]


@cache
def markers_of(form: CallFormat) -> FormatMarkers:
    """Return the markers of a format."""
    return FormatMarkers(form)


def begins_call(form: CallFormat, character: str) -> bool:
    """Whether a call without a marker, or a list of them, begins with a character."""
    return character == "[" or begins_unmarked(form, character)


def begins_unmarked(form: CallFormat, character: str) -> bool:
    """Whether a call without a marker begins with a character."""
    return not form.call_open and notation_of(form, character) is not None


def _bare_openers(form: CallFormat) -> tuple[str, ...]:
    """Return what a call behind text begins with; a list of Python is rather a citation there."""
    return BARE_OPENERS[:1] if "python" in form.notations else BARE_OPENERS
