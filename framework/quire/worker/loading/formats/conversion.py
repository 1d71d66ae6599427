"""Conversion of a checkpoint's tensors to those that models expect, by its names and its config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.compose.gguf.model_config import key_names
from quire.compose.gguf.model_values import COPY_AGAIN
from quire.compose.gguf.split_files import read_files
from quire.errors import UnsupportedModelError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, StoredTensor, unchanged
from quire.interfaces.quantization import PreparedQuantization
from quire.worker.loading.checkpoint_words import CheckpointWords
from quire.worker.loading.formats.consolidated import from_consolidated, is_consolidated
from quire.worker.loading.formats.gguf import from_gguf, gguf_rules, is_gguf_layout
from quire.worker.loading.tensor_reading import read_stored


def converted_tensors(
    stored: Mapping[str, StoredTensor],
    config: Mapping[str, Any],
    prepared: PreparedQuantization | None,
) -> dict[str, CheckpointTensor]:
    """Return the tensors of a checkpoint in the layout of Hugging Face.

    Args:
        stored: Tensors of its files.
        config: Its config.json.
        prepared: Method that reads its quantized weights; None: they are not quantized.

    Raises:
        CheckpointCorruptError: Tensors do not fit together.
        UnsupportedModelError: Quantized weights have Mistral's own layout.
    """
    tensors = unchanged(stored)
    if is_consolidated(tensors):
        if prepared is not None:
            file = next(iter(stored.values())).file
            raise UnsupportedModelError(
                f"{file.name} has Mistral's own layout, and quantization_config in config.json "
                "says that its weights are quantized; quire reads quantized weights in the layout "
                "of Hugging Face: download the files model*.safetensors of the model, or use one "
                "that is not quantized"
            )
        tensors = from_consolidated(tensors, config)
    elif is_gguf_layout(tensors):
        tensors = from_gguf(tensors, config)
    return tensors if prepared is None else prepared.read(tensors, read_stored)


def checkpoint_words(folder: Path, config: Mapping[str, Any]) -> CheckpointWords:
    """Return what errors call the parts of a checkpoint.

    Args:
        folder: Path of its folder, or of its GGUF file.
        config: Its config.json, or what the GGUF file stands for.
    """
    if not folder.is_file():
        return CheckpointWords()
    keys = dict(key_names(read_files(folder)))
    keys["vocab_size"] = "the number of rows of token_embd.weight"
    return CheckpointWords(
        name=repr(str(folder)),
        config="its metadata",
        way_out=f"; {COPY_AGAIN}",
        keys=keys,
        rules=gguf_rules(config),
    )
