"""The table of contents of this plugin. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.tool_parsing import ToolParser, ToolParserCapabilities


@hookimpl
def register_tool_parsers(registry: Registrar[type[ToolParser]]) -> None:
    """Offer the tool-call parsers below."""
    registry.add(
        "hermes",
        "quire_tool_parsers.hermes:HermesToolParser",
        capabilities=ToolParserCapabilities(template_markers=("<tool_call>",)),
    )
