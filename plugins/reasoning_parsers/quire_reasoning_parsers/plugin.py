"""Registration of the reasoning parsers of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.reasoning import ReasoningParser, ReasoningParserCapabilities


@hookimpl
def register_reasoning_parsers(registry: Registrar[type[ReasoningParser]]) -> None:
    """Register the reasoning parsers."""
    registry.add(
        "think_tags",
        "quire_reasoning_parsers.think_tags:ThinkTagsParser",
        capabilities=ReasoningParserCapabilities(
            template_markers=("<think>",), end_marker="</think>", start_marker="<think>"
        ),
    )
