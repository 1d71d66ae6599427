"""GPT-2 (Radford et al., 2019), GPT-BigCode (StarCoder 1) and GPT-J, with their early names.

GPT-2 stores linear layers transposed. Some of its checkpoints lack the first part of the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.decoder.options.config_reading import (
    HeadSizes,
    read_activation,
    read_attention,
    read_decoder,
    read_equal_heads,
    read_layer_norm,
    refuse_flag,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig, PositionTable
from quire_models.decoder.options.fused_names import LAYER, QKV
from quire_models.decoder.options.mlp_config import MLPConfig

KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
NAMES = {
    "wte": "model.embed_tokens",
    "wpe": "model.embed_positions",
    "ln_f": "model.norm",
    "h.{layer}.ln_1": f"{LAYER}.input_layernorm",
    "h.{layer}.ln_2": f"{LAYER}.post_attention_layernorm",
}
LINEARS = {
    "h.{layer}.attn.c_proj": f"{LAYER}.self_attn.o_proj",
    "h.{layer}.mlp.c_fc": f"{LAYER}.mlp.up_proj",
    "h.{layer}.mlp.c_proj": f"{LAYER}.mlp.down_proj",
}
GPTJ_LINEARS = {
    **{f"h.{{layer}}.attn.{part}_proj": f"{LAYER}.self_attn.{part}_proj" for part in "qkv"},
    "h.{layer}.attn.out_proj": f"{LAYER}.self_attn.o_proj",
    "h.{layer}.mlp.fc_in": f"{LAYER}.mlp.up_proj",
    "h.{layer}.mlp.fc_out": f"{LAYER}.mlp.down_proj",
}
UNUSED = (r".*\.attn\.(bias|masked_bias)",)  # causal masks


def read_gpt2(values: ConfigValues) -> DecoderConfig:
    """Return the options of GPT-2; a layer's scores may be divided by its number."""
    values = replace(values, aliases=KEYS)
    refuse_flag(values, "add_cross_attention", "only decoders without an encoder are")
    attention = _attention(values, read_equal_heads(values))
    layers: Sequence[LayerConfig] = same_layers(values, attention, _mlp(values, "gelu_new"))
    if values.flag("scale_attn_by_inverse_layer_idx", False):
        layers = [
            replace(each, attention=replace(attention, scale=attention.scale / (number + 1)))
            for number, each in enumerate(layers)
        ]
    rules = [
        rule
        for prefix in ("transformer.", "")
        for rule in (
            *_renamed(prefix, NAMES),
            *_renamed(prefix, LINEARS, transposed=True),
            WeightRule(f"{prefix}h.{{layer}}.attn.c_attn", QKV, transposed=True),
        )
    ]
    return _read(values, layers, rules)


def read_gpt_bigcode(values: ConfigValues) -> DecoderConfig:
    """Return the options of GPT-BigCode: one key/value head, or as many as query heads."""
    values = replace(values, aliases=KEYS)
    refuse_flag(values, "add_cross_attention", "only decoders without an encoder are")
    is_multi_query = values.flag("multi_query", True)
    heads = read_equal_heads(values)
    if is_multi_query:
        heads = replace(heads, num_kv_heads=1)
    groups = 1 if is_multi_query else heads.num_heads
    rules = (
        *_renamed("transformer.", NAMES | LINEARS),
        WeightRule("transformer.h.{layer}.attn.c_attn", QKV, groups=groups),
    )
    attention, mlp = _attention(values, heads), _mlp(values, "gelu_pytorch_tanh")
    return _read(values, same_layers(values, attention, mlp), rules)


def read_gptj(values: ConfigValues) -> DecoderConfig:
    """Return the options of GPT-J: attention and MLP side by side, and a rotary embedding."""
    values = replace(values, aliases=KEYS)
    heads = read_equal_heads(values)
    rotary_dim = values.count("rotary_dim", heads.head_dim)
    rope = RopeParameters(10_000.0, None, rotary_dim, is_interleaved=True)
    attention = read_attention(values, heads=heads, rope=rope)
    return read_decoder(
        values,
        same_layers(values, attention, _mlp(values, "gelu_new")),
        read_layer_norm(values, "layer_norm_epsilon"),
        placement="parallel",
        head_bias=True,
        weight_rules=_renamed("transformer.", NAMES | GPTJ_LINEARS),
        ignored_weights=UNUSED,
    )


def _attention(values: ConfigValues, heads: HeadSizes) -> AttentionConfig:
    is_scaled = values.flag("scale_attn_weights", True)
    return AttentionConfig(
        **heads.as_options,
        scale=heads.head_dim**-0.5 if is_scaled else 1.0,
        qkv_bias=True,
        output_bias=True,
    )


def _mlp(values: ConfigValues, activation: str) -> MLPConfig:
    return MLPConfig(
        width=values.count("intermediate_size", 4 * values.count("hidden_size")),
        activation=read_activation(values, "activation_function", activation),
        is_gated=False,
        has_bias=True,
    )


def _read(
    values: ConfigValues, layers: Sequence[LayerConfig], rules: Sequence[WeightRule]
) -> DecoderConfig:
    """Return the options of a decoder with learned positions."""
    return read_decoder(
        values,
        layers,
        read_layer_norm(values, "layer_norm_epsilon"),
        positions=PositionTable(num_positions=values.count("max_position_embeddings")),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
        weight_rules=tuple(rules),
        ignored_weights=UNUSED,
    )


def _renamed(prefix: str, names: Mapping[str, str], **options: Any) -> tuple[WeightRule, ...]:
    return tuple(WeightRule(prefix + theirs, (ours,), **options) for theirs, ours in names.items())
