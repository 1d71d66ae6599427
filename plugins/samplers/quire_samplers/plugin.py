"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.sampling import SamplerStep
from quire.registry import Registrar


@hookimpl
def register_samplers(registry: Registrar[type[SamplerStep]]) -> None:
    """Offer the sampler steps below."""
