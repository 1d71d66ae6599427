"""Tiny checkpoints of every family, written by transformers with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.testing.model import TINY_SIZES
from quire.testing.model.model_scene import ModelScene, ModelSizes
from quire.testing.model.transformers_checkpoint import (
    TransformersCheckpoint,
    write_transformers_checkpoint,
)

MISSING = object()


@dataclass(frozen=True, slots=True)
class FamilyCase:
    """A shape of a family.

    Attributes:
        model_type: Name of the config in transformers.
        options: Values of the config beside the sizes; MISSING takes a size away.
        embedding_gain: Size of the embeddings; the larger, the more tokens are generated.
        attention: Implementation in transformers. The eager one of Falcon adds its biases twice.
    """

    model_type: str
    options: dict[str, Any]
    embedding_gain: float = 1.5
    attention: str = "eager"

    def transformers_config(self) -> Any:
        from transformers import AutoConfig

        values = {**TINY_SIZES, **self.options}
        given = {key: value for key, value in values.items() if value is not MISSING}
        return AutoConfig.for_model(self.model_type, **given)


def write_family(folder: Path, case: FamilyCase, seed: int = 0) -> TransformersCheckpoint:
    """Write a checkpoint of a family, in the names that its publishers use."""
    return write_transformers_checkpoint(
        folder,
        case.transformers_config(),
        seed=seed,
        embedding_gain=case.embedding_gain,
        attention=case.attention,
    )


def scene_of(written: TransformersCheckpoint, sizes: ModelSizes | None = None) -> ModelScene:
    """Return the scene of a checkpoint whose reference is transformers."""
    options = {"threads": 1}
    return ModelScene(written.config, written.folder, written.logits, sizes=sizes, options=options)
