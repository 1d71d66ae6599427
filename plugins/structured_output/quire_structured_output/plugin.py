"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.structured_output import StructuredOutputBackend
from quire.registry import Registrar


@hookimpl
def register_structured_output(registry: Registrar[type[StructuredOutputBackend]]) -> None:
    """Offer the structured-output backends below."""
