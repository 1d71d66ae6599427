"""Config of Qwen2: biases always on query, key and value, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.interfaces.model import ModelDescription
from quire.layers.config_values import ConfigValues
from quire_models.decoder_config import (
    DecoderConfig,
    describe_decoder,
    read_llama_like,
    refuse_sliding_window,
)

ARCHITECTURE = "Qwen2ForCausalLM"


def describe_qwen2(config: Mapping[str, Any]) -> ModelDescription:
    """Return the model description that the engine plans with.

    Raises:
        UnsupportedModelError: The config has a value that quire does not support.
    """
    return describe_decoder(ARCHITECTURE, config, read_qwen2(config))


def read_qwen2(config: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder config; raises as `describe_qwen2` does."""
    values = ConfigValues(config, ARCHITECTURE)
    refuse_sliding_window(values)
    return DecoderConfig(**read_llama_like(values), qkv_bias=True)
