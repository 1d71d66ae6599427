"""Command R (Cohere, 2024) and Command R7B and A: attention and MLP side by side after one norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_norm,
    read_layer_types,
    read_mlp,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig


def read_cohere(values: ConfigValues) -> DecoderConfig:
    """Return the options of Command R; Command R+ normalises queries and keys."""
    attention = _read_attention(values)
    if values.flag("use_qk_norm", False):
        norm = read_layer_norm(values, has_bias=False)
        attention = replace(attention, qk_norm=QKNormConfig(norm=norm, over="heads"))
    return _read(values, same_layers(values, attention, read_mlp(values)))


def read_cohere2(values: ConfigValues) -> DecoderConfig:
    """Return the options of Command R7B and A: full layers have no rotary embedding."""
    sliding = replace(_read_attention(values), window=values.count("sliding_window", 4096))
    full = replace(sliding, window=None, rope=None)
    pattern = values.count("sliding_window_pattern", 4)
    kinds = read_layer_types(values, lambda i: SLIDING if (i + 1) % pattern else FULL)
    attentions = {FULL: full, SLIDING: sliding}
    return _read(values, layers_by_type(kinds, attentions, read_mlp(values)))


def _read_attention(values: ConfigValues) -> AttentionConfig:
    bias = values.flag("attention_bias", False)
    heads = read_heads(values)
    rope = read_rope(values, head_dim=heads.head_dim, is_interleaved=True)
    return read_attention(values, heads=heads, rope=rope, qkv_bias=bias, output_bias=bias)


def _read(values: ConfigValues, layers: Sequence[LayerConfig]) -> DecoderConfig:
    return read_decoder(
        values,
        layers,
        read_layer_norm(values, has_bias=False),
        placement="parallel",
        logit_scale=values.positive("logit_scale", 0.0625),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
    )
