"""Registration of the tool-call parsers of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.tool_parsing import ToolParser, ToolParserCapabilities


@hookimpl
def register_tool_parsers(registry: Registrar[type[ToolParser]]) -> None:
    """Register the tool-call parsers."""
    registry.add(
        "hermes",
        "quire_tool_parsers.hermes:HermesToolParser",
        capabilities=ToolParserCapabilities(template_markers=("<tool_call>",)),
    )
