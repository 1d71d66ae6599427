"""The shipped table of formats, one entry for each family of models."""

from functools import cache
from pathlib import Path

import msgspec

from quire.interfaces.tool_parsing import ToolParserCapabilities
from quire_tool_parsers.call_format import CallFormat

TABLE = Path(__file__).with_name("families.toml")


@cache
def read_table() -> dict[str, CallFormat]:
    """Return the formats by the name of their family."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, CallFormat])


def capabilities_of(form: CallFormat) -> ToolParserCapabilities:
    """Return the capabilities of the parser of a format."""
    return ToolParserCapabilities(
        template_markers=form.template_markers,
        architectures=form.architectures,
        priority=form.priority,
        markers=form.markers(),
        calls_end_reasoning=form.calls_end_reasoning,
        call_openers=(*form.section_open, *form.call_open),
        call_id_length=form.call_ids.length,
        alternative_markers=form.alternative_markers,
        excluded_markers=form.excluded_markers,
    )
