"""Falcon (TII, 2023): fused projections in three layouts, and three placements of norms."""

from __future__ import annotations

from dataclasses import replace

from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    HeadSizes,
    optional_count,
    read_activation,
    read_attention,
    read_decoder,
    read_equal_heads,
    read_layer_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, Placement
from quire_models.decoder.options.fused_names import LAYER, QKV, renamed
from quire_models.decoder.options.mlp_config import MLPConfig

THEIRS = "transformer.h.{layer}"
NAMES = {
    "transformer.word_embeddings": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    f"{THEIRS}.input_layernorm": f"{LAYER}.input_layernorm",
    f"{THEIRS}.post_attention_layernorm": f"{LAYER}.post_attention_layernorm",
    f"{THEIRS}.ln_attn": f"{LAYER}.input_layernorm",
    f"{THEIRS}.ln_mlp": f"{LAYER}.post_attention_layernorm",
    f"{THEIRS}.self_attention.dense": f"{LAYER}.self_attn.o_proj",
    f"{THEIRS}.mlp.dense_h_to_4h": f"{LAYER}.mlp.up_proj",
    f"{THEIRS}.mlp.dense_4h_to_h": f"{LAYER}.mlp.down_proj",
}


def read_falcon(values: ConfigValues) -> DecoderConfig:
    """Return the options of Falcon."""
    heads, is_new = _heads(values), values.flag("new_decoder_architecture", False)
    bias, has_alibi = values.flag("bias", False), values.flag("alibi", False)
    attention = read_attention(
        values,
        heads=heads,
        rope=read_rope(values, head_dim=heads.head_dim),
        qkv_bias=bias,
        output_bias=bias,
    )
    if has_alibi:
        attention = replace(attention, rope=None, alibi_max_bias=8.0, alibi_scale=attention.scale)
    groups = heads.num_kv_heads if is_new or heads.num_kv_heads > 1 else 1
    width = optional_count(values, "ffn_hidden_size") or 4 * values.count("hidden_size")
    activation = read_activation(values, "activation", "gelu")
    mlp = MLPConfig(width=width, activation=activation, is_gated=False, has_bias=bias)
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        read_layer_norm(values, "layer_norm_epsilon"),
        max_positions=values.count("max_position_embeddings", 2048),
        placement=_placement(values, is_new),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
        weight_rules=(
            WeightRule(f"{THEIRS}.self_attention.query_key_value", QKV, groups=groups),
            *renamed(NAMES),
        ),
    )


def _heads(values: ConfigValues) -> HeadSizes:
    sizes = read_equal_heads(values)
    if values.flag("new_decoder_architecture", False):
        return replace(sizes, num_kv_heads=values.count("num_kv_heads", sizes.num_heads))
    return replace(sizes, num_kv_heads=1) if values.flag("multi_query", True) else sizes


def _placement(values: ConfigValues, is_new: bool) -> Placement:
    if not (is_new or values.flag("parallel_attn", True)):
        return "pre"
    has_two = is_new and values.count("num_ln_in_parallel_attn", 2) == 2
    return "parallel_two_norms" if has_two else "parallel"
