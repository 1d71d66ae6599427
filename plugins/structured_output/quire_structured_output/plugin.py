"""The table of contents of this plugin. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.structured_output import GrammarCapabilities, StructuredOutputBackend


@hookimpl
def register_structured_output(registry: Registrar[type[StructuredOutputBackend]]) -> None:
    """Offer the structured-output backends below."""
    registry.add(
        "outlines",
        "quire_structured_output.outlines:OutlinesBackend",
        capabilities=GrammarCapabilities(
            frozenset({"json", "json_object", "regex", "choice", "calls"})
        ),
    )
