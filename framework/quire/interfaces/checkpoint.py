"""The interface of shipped checkpoints: names that stand for a folder inside a package.

`LLM("demo")` works because a plugin registers the checkpoint `demo`. The registered object is a
function without arguments that returns a `ShippedCheckpoint`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ShippedCheckpoint:
    """A folder in Hugging Face layout, and the folders of its LoRA adapters by name."""

    folder: Path
    adapters: dict[str, Path] = field(default_factory=dict)


CheckpointSource = Callable[[], ShippedCheckpoint]
