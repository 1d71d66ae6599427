"""Helium (Kyutai, 2025): a rotary embedding of neighbouring elements."""

from __future__ import annotations

from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_heads,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig


def read_helium(values: ConfigValues) -> DecoderConfig:
    """Return the options of Helium, whose output projection never has a bias."""
    heads = read_heads(values)
    rope = read_rope(values, head_dim=heads.head_dim, is_interleaved=True)
    attention = read_attention(
        values, heads=heads, rope=rope, qkv_bias=values.flag("attention_bias", False)
    )
    mlp = read_mlp(values, has_bias=values.flag("mlp_bias", False))
    return read_decoder(values, same_layers(values, attention, mlp), read_rms_norm(values, 1e-8))
