"""SmolLM 3 (2025): every fourth layer has no rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_with_rope,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig


def read_smollm3(values: ConfigValues) -> DecoderConfig:
    """Return the options of SmolLM 3; layers without a rotary embedding may have a window."""
    bias = values.flag("attention_bias", False)
    rotated = read_attention(values, qkv_bias=bias, output_bias=bias)
    mlp = read_mlp(values, has_bias=values.flag("mlp_bias", False))
    has_rope = layers_with_rope(
        values, values.wholes("no_rope_layers") if values.has("no_rope_layers") else None
    )
    is_windowed = values.flag("use_sliding_window", False)
    window = values.count("sliding_window") if is_windowed else None
    kinds = read_layer_types(values, lambda i: SLIDING if is_windowed and not has_rope[i] else FULL)
    layers = [
        LayerConfig(
            attention=replace(
                rotated,
                rope=rotated.rope if has_rope[i] else None,
                window=window if kind == SLIDING else None,
            ),
            mlp=mlp,
        )
        for i, kind in enumerate(kinds)
    ]
    tied = values.flag("tie_word_embeddings", True)
    return read_decoder(values, layers, read_rms_norm(values), tie_word_embeddings=tied)
