"""The interface of shipped checkpoints: names that stand for a folder inside a package.

`LLM("demo")` works because a plugin offers the checkpoint `demo`. The code behind the name is a
function without arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ShippedCheckpoint:
    """A folder in the layout of Hugging Face, and the adapters that come with it, by name."""

    folder: Path
    adapters: dict[str, Path] = field(default_factory=dict)


CheckpointSource = Callable[[], ShippedCheckpoint]
