"""GLM-4 (2024) and GLM-4-0414: a rotary embedding of neighbouring elements over half of a head."""

from __future__ import annotations

from typing import Any

from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import QKNormConfig
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_heads,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import FUSED_GATE_UP, renamed_norms
from quire_models.decoder.options.sigmoid_moe import read_sigmoid_moe

GLM4_NORMS = {
    "post_self_attn_layernorm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}


def read_glm(values: ConfigValues) -> DecoderConfig:
    """Return the options of GLM-4 of 2024."""
    return _read(values, (FUSED_GATE_UP,))


def read_glm4(values: ConfigValues) -> DecoderConfig:
    """Return the options of GLM-4-0414, with norms on both sides of each block."""
    return _read(values, (FUSED_GATE_UP, *renamed_norms(GLM4_NORMS)), placement="sandwich")


def read_glm4v(values: ConfigValues) -> DecoderConfig:
    """Return the options of the text model of GLM-4.1V: as GLM-4-0414, of which it is made.

    Heads divide the hidden size, all of a head is rotated unless the file says else, and biases of
    q, k and v are always there.
    """
    heads = read_heads(values)
    rope = read_rope(values, head_dim=heads.head_dim, is_interleaved=True)
    attention = read_attention(values, heads=heads, rope=rope, qkv_bias=True)
    rules = (FUSED_GATE_UP, *renamed_norms(GLM4_NORMS))
    norm = read_rms_norm(values, 1e-5)
    layers = same_layers(values, attention, read_mlp(values))
    return read_decoder(values, layers, norm, weight_rules=rules, placement="sandwich")


def read_glm4_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of GLM-4.5 to 4.7: experts chosen by sigmoid scores with a bias."""
    heads = read_heads(values)
    attention = read_attention(
        values,
        heads=heads,
        rope=read_rope(values, head_dim=heads.head_dim, partial_factor=0.5),
        qkv_bias=values.flag("attention_bias", False),
        qk_norm=QKNormConfig(norm=read_rms_norm(values, 1e-5))
        if values.flag("use_qk_norm", False)
        else None,
    )
    return read_sigmoid_moe(values, [attention] * values.count("num_hidden_layers"))


def _read(values: ConfigValues, rules: tuple[WeightRule, ...], **options: Any) -> DecoderConfig:
    heads = read_heads(values)
    rope = read_rope(values, head_dim=heads.head_dim, partial_factor=0.5, is_interleaved=True)
    attention = read_attention(
        values, heads=heads, rope=rope, qkv_bias=values.flag("attention_bias", True)
    )
    layers = same_layers(values, attention, read_mlp(values))
    norm = read_rms_norm(values, 1.5625e-07)
    return read_decoder(values, layers, norm, weight_rules=rules, **options)
