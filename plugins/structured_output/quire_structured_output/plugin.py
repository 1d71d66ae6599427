"""Registration of the structured-output backends of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.structured_output import GrammarCapabilities, StructuredOutputBackend


@hookimpl
def register_structured_output(registry: Registrar[type[StructuredOutputBackend]]) -> None:
    """Register the structured-output backends."""
    registry.add(
        "outlines",
        "quire_structured_output.outlines.outlines:OutlinesBackend",
        capabilities=GrammarCapabilities(
            frozenset({"json", "json_object", "regex", "choice", "calls"}), priority=10
        ),
    )
    registry.add(
        "llguidance",
        "quire_structured_output.llguidance.llguidance:LLGuidanceBackend",
        capabilities=GrammarCapabilities(
            frozenset(
                {"json", "json_object", "regex", "choice", "grammar", "structural_tag", "calls"}
                | {"calls_in_text"}
            ),
            priority=20,
        ),
    )
