"""Checkpoint source of the demo model and its adapters."""

from pathlib import Path

from quire.interfaces.checkpoint import ShippedCheckpoint

HERE = Path(__file__).parent


def demo() -> ShippedCheckpoint:
    """Return the demo model, with its adapters by name."""
    adapters = {folder.name: folder for folder in sorted((HERE / "adapters").iterdir())}
    return ShippedCheckpoint(HERE / "checkpoint", adapters)
