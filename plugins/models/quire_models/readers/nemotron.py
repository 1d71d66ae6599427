"""Nemotron-4 and Minitron (NVIDIA, 2024), Arcee (2025), Jais 2: plain MLPs with a squared ReLU."""

from __future__ import annotations

from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import NormConfig
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_heads,
    read_layer_norm,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig


def read_nemotron(values: ConfigValues) -> DecoderConfig:
    """Return the options of Nemotron-4: half of a head is rotated, norms are around one."""
    norm = read_layer_norm(values, "norm_eps", weight_offset=1.0)
    return _read(values, norm, partial_factor=0.5)


def read_arcee(values: ConfigValues) -> DecoderConfig:
    """Return the options of Arcee."""
    return _read(values, read_rms_norm(values, 1e-5))


def read_jais2(values: ConfigValues) -> DecoderConfig:
    """Return the options of Jais 2: LayerNorm, and biases by default."""
    return _read(values, read_layer_norm(values), bias=True)


def _read(
    values: ConfigValues, norm: NormConfig, *, partial_factor: float = 1.0, bias: bool = False
) -> DecoderConfig:
    heads = read_heads(values)
    attention_bias = values.flag("attention_bias", bias)
    attention = read_attention(
        values,
        heads=heads,
        rope=read_rope(values, head_dim=heads.head_dim, partial_factor=partial_factor),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
    )
    mlp = read_mlp(
        values,
        default_activation="relu2",
        is_gated=False,
        has_bias=values.flag("mlp_bias", bias),
    )
    return read_decoder(values, same_layers(values, attention, mlp), norm)
