"""The table of contents of this plugin."""

from quire import hookimpl
from quire.interfaces.checkpoint import CheckpointSource
from quire.registry import Registrar


@hookimpl
def register_checkpoints(registry: Registrar[CheckpointSource]) -> None:
    """Offer the demo model."""
    registry.add("demo", "quire_demo.checkpoint_source:demo")
