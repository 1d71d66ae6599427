"""The parsers of the shipped formats: `families.hermes` is the class for the entry `hermes`."""

from functools import cache

from quire_tool_parsers.call_format import CallFormat
from quire_tool_parsers.family_table import read_table
from quire_tool_parsers.format_parser import FormatParser


def __getattr__(name: str) -> type[FormatParser]:
    try:
        return _family(name)
    except KeyError:
        raise AttributeError(f"no family of tool calls is named {name!r}") from None


def parser_of(name: str, form: CallFormat) -> type[FormatParser]:
    """Return a parser class of a format.

    Args:
        name: Name of the class.
        form: Format of the calls.
    """
    return type(name, (FormatParser,), {"__doc__": f"Parser of {name} calls.", "format": form})


@cache
def _family(name: str) -> type[FormatParser]:
    return parser_of(name, read_table()[name])
