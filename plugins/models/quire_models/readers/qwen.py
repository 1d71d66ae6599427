"""Qwen 2 (biases of q, k and v) and Qwen 3 (a norm of each query and key head)."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig

FIRST_WINDOW_LAYER = 28  # of transformers, for files without `max_window_layers`


def read_qwen2(values: ConfigValues) -> DecoderConfig:
    """Return the options of Qwen 2."""
    return _read(values, read_attention(values, qkv_bias=True))


def read_qwen3(values: ConfigValues) -> DecoderConfig:
    """Return the options of Qwen 3."""
    bias = values.flag("attention_bias", False)
    attention = read_attention(
        values,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormConfig(norm=read_rms_norm(values)),
    )
    return _read(values, attention)


def _read(values: ConfigValues, full: AttentionConfig) -> DecoderConfig:
    """Return the options of a decoder whose later layers may have a sliding window."""
    attentions, kinds = {FULL: full}, _layer_types(values)
    if SLIDING in kinds:
        attentions[SLIDING] = replace(full, window=values.count("sliding_window", 4096))
    layers = layers_by_type(kinds, attentions, read_mlp(values))
    return read_decoder(values, layers, read_rms_norm(values))


def _layer_types(values: ConfigValues) -> tuple[str, ...]:
    """Return the type of each layer; a window that `use_sliding_window` switches off has none."""
    is_used = values.flag("use_sliding_window", False)
    first = values.whole("max_window_layers", FIRST_WINDOW_LAYER)
    kinds = read_layer_types(values, lambda i: SLIDING if is_used and i >= first else FULL)
    if SLIDING in kinds and not is_used:
        raise UnsupportedModelError(
            f"{values.architecture}: layer_types has {SLIDING}, but use_sliding_window is not true"
        )
    return kinds
