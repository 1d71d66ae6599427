"""The parsers of the table of families: a class for each, made when it is asked for."""

from quire_reasoning_parsers.append_think import AppendThinkParser
from quire_reasoning_parsers.family_table import read_families
from quire_reasoning_parsers.tag_parser import TagParser


def __getattr__(name: str) -> type[TagParser] | type[AppendThinkParser]:
    """Return the parser of a family."""
    family = read_families().get(name)
    if family is None:
        raise AttributeError(f"there is no family {name!r}")
    base = AppendThinkParser if family.format.is_content else TagParser
    return type(name, (base,), {"format": family.format, "__module__": __name__})
