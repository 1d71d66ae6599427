"""The parsers of the table of families: a class for each, made when it is asked for."""

from quire.interfaces.reasoning import ReasoningParser
from quire_reasoning_parsers.append_think import AppendThinkParser
from quire_reasoning_parsers.family_table import Family, read_families
from quire_reasoning_parsers.tag_parser import TagParser


def __getattr__(name: str) -> type[ReasoningParser]:
    """Return the parser of a family."""
    family = read_families().get(name)
    if family is None:
        raise AttributeError(f"there is no family {name!r}")
    return parser_of(name, family)


def parser_of(name: str, family: Family) -> type[ReasoningParser]:
    """Return a parser class.

    Args:
        name: Name of the class.
        family: Family of which it reads the reasoning.
    """
    base = AppendThinkParser if family.format.is_content else TagParser
    body = {"format": family.format, "capabilities": family.capabilities, "__module__": __name__}
    return type(name, (base,), body)
