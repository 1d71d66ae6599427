"""Registration of the demo model."""

from quire import Registrar, hookimpl
from quire.interfaces.checkpoint import CheckpointSource


@hookimpl
def register_checkpoints(registry: Registrar[CheckpointSource]) -> None:
    """Register the demo model."""
    registry.add("demo", "quire_demo.checkpoint_source:demo")
