"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.executor import Executor
from quire.registry import Registrar


@hookimpl
def register_executors(registry: Registrar[type[Executor]]) -> None:
    """Offer the executors below."""
