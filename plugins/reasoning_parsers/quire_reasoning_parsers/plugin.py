"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.reasoning import ReasoningParser
from quire.registry import Registrar


@hookimpl
def register_reasoning_parsers(registry: Registrar[type[ReasoningParser]]) -> None:
    """Offer the reasoning parsers below."""
