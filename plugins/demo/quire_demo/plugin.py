"""The table of contents of this plugin."""

from quire import Registrar, hookimpl
from quire.interfaces.checkpoint import CheckpointSource


@hookimpl
def register_checkpoints(registry: Registrar[CheckpointSource]) -> None:
    """Offer the demo model."""
    registry.add("demo", "quire_demo.checkpoint_source:demo")
