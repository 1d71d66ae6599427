"""The parsers of the shipped formats: `families.hermes` is the class for the entry `hermes`."""

from functools import cache

from quire_tool_parsers.family_table import read_table
from quire_tool_parsers.format_parser import FormatParser


def __getattr__(name: str) -> type[FormatParser]:
    try:
        return _family(name)
    except KeyError:
        raise AttributeError(f"no family of tool calls is named {name!r}") from None


@cache
def _family(name: str) -> type[FormatParser]:
    return FormatParser.of_format(name, read_table()[name])
