"""Mistral (Jiang et al., 2023): sliding windows, and queries scaled by position in Ministral 3."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import QueryScaling
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    optional_count,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig


def read_mistral(values: ConfigValues) -> DecoderConfig:
    """Return the options of Mistral: a window in all layers, or none."""
    attention = read_attention(values, window=optional_count(values, "sliding_window"))
    layers = same_layers(values, attention, read_mlp(values))
    return read_decoder(values, layers, read_rms_norm(values))


def read_ministral(values: ConfigValues) -> DecoderConfig:
    """Return the options of Ministral: a window in the layers that `layer_types` names."""
    window = optional_count(values, "sliding_window")
    default = FULL if window is None else SLIDING
    kinds = read_layer_types(values, lambda _: default)
    if SLIDING in kinds and window is None:
        raise UnsupportedModelError(
            f"{values.architecture}: layer_types has {SLIDING}, but sliding_window is not set"
        )
    full = read_attention(values)
    attentions = {FULL: full, SLIDING: replace(full, window=window)}
    layers = layers_by_type(kinds, attentions, read_mlp(values))
    return read_decoder(values, layers, read_rms_norm(values))


def read_ministral3(values: ConfigValues) -> DecoderConfig:
    """Return the options of Ministral 3: queries grow with the logarithm of their position."""
    rope = values.nested("rope_parameters")
    attention = read_attention(
        values,
        window=optional_count(values, "sliding_window"),
        query_scaling=QueryScaling(
            beta=rope.positive("llama_4_scaling_beta"),
            length=rope.count("original_max_position_embeddings"),
        ),
    )
    layers = same_layers(values, attention, read_mlp(values))
    return read_decoder(values, layers, read_rms_norm(values, 1e-5))
