"""The table of contents of this plugin. Imports no model."""

from quire import hookimpl
from quire.interfaces.model import Model
from quire.registry import Registrar


@hookimpl
def register_models(registry: Registrar[type[Model]]) -> None:
    """Offer the models below, by architecture name."""
