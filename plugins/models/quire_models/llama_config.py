"""Config of Llama: optional biases and head_dim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.interfaces.model import ModelDescription
from quire.layers.config_values import ConfigValues
from quire_models.decoder_config import DecoderConfig, describe_decoder, read_llama_like

ARCHITECTURE = "LlamaForCausalLM"


def describe_llama(config: Mapping[str, Any]) -> ModelDescription:
    """Return the model description that the engine plans with.

    Raises:
        UnsupportedModelError: The config has a value that quire does not support.
    """
    return describe_decoder(ARCHITECTURE, config, read_llama(config))


def read_llama(config: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder config; raises as `describe_llama` does."""
    values = ConfigValues(config, ARCHITECTURE)
    attention_bias = values.flag("attention_bias", False)
    return DecoderConfig(
        **read_llama_like(values),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=values.flag("mlp_bias", False),
    )
