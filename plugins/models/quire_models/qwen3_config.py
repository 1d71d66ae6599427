"""Config of Qwen3: a norm over each query and key head, and a default head_dim of 128."""

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

ARCHITECTURE = "Qwen3ForCausalLM"


def describe_qwen3(config: Mapping[str, Any]) -> ModelDescription:
    """Return the model description that the engine plans with.

    Raises:
        UnsupportedModelError: The config has a value that quire does not support.
    """
    return describe_decoder(ARCHITECTURE, config, read_qwen3(config))


def read_qwen3(config: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder config; raises as `describe_qwen3` does."""
    values = ConfigValues(config, ARCHITECTURE)
    refuse_sliding_window(values)
    attention_bias = values.flag("attention_bias", False)
    return DecoderConfig(
        **read_llama_like(values, head_dim=128),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        has_qk_norm=True,
    )
