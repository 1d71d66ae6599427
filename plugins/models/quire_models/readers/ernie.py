"""ERNIE 4.5 (Baidu, 2025): a rotary embedding of neighbouring elements; some have experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.decoder.options.config_reading import (
    HeadSizes,
    moe_layers,
    read_attention,
    read_decoder,
    read_heads,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig
from quire_models.decoder.options.fused_names import LAYER, SHARED_EXPERTS
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

MOE_RULES = (
    *SHARED_EXPERTS,
    WeightRule(
        f"{LAYER}.mlp.moe_statics.e_score_correction_bias",
        (f"{LAYER}.mlp.gate.e_score_correction_bias",),
    ),
)


def read_ernie(values: ConfigValues) -> DecoderConfig:
    """Return the options of ERNIE 4.5 without experts."""
    attention = _read_attention(values, read_heads(values))
    mlp = read_mlp(values, has_bias=values.flag("use_bias", False))
    return _read(values, same_layers(values, attention, mlp))


def read_ernie_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of ERNIE 4.5 with experts, which some layers in the middle have."""
    bias = values.flag("use_bias", False)
    expert = read_mlp(values, width="moe_intermediate_size")
    num_shared = values.whole("moe_num_shared_experts", 0)
    shared = None
    if num_shared:
        shared = replace(expert, width=expert.width * num_shared, has_bias=bias)
    moe = MoEConfig(
        routing=read_routing(
            values,
            experts="moe_num_experts",
            top_k="moe_k",
            has_choice_bias=True,
            choice_bias_dims=2,
            renormalize=True,
            min_sum=values.positive("moe_norm_min", 1e-12),
        ),
        expert=expert,
        shared=shared,
    )
    num_layers = values.count("num_hidden_layers")
    first, last = values.whole("moe_layer_start_index", 1), _last_with_experts(values, num_layers)
    step = values.count("moe_layer_interval", 1)
    is_moe = [(i + 1) % step == 0 and first <= i <= last for i in range(num_layers)]
    attention = _read_attention(values, read_heads(values))
    dense = read_mlp(values, has_bias=bias)
    layers = moe_layers([attention] * num_layers, dense, moe, is_moe)
    return _read(values, layers, weight_rules=MOE_RULES, head_bias=bias)


def _last_with_experts(values: ConfigValues, num_layers: int) -> int:
    if values.config.get("moe_layer_end_index") == -1:
        return num_layers - 1
    return values.whole("moe_layer_end_index", num_layers - 1)


def _read_attention(values: ConfigValues, heads: HeadSizes) -> AttentionConfig:
    """Return the options of attention; one flag is for all biases."""
    bias = values.flag("use_bias", False)
    rope = read_rope(values, head_dim=heads.head_dim, is_interleaved=True)
    return read_attention(values, heads=heads, rope=rope, qkv_bias=bias, output_bias=bias)


def _read(values: ConfigValues, layers: Sequence[LayerConfig], **options: Any) -> DecoderConfig:
    tied = values.flag("tie_word_embeddings", True)
    norm = read_rms_norm(values, 1e-5)
    return read_decoder(values, layers, norm, tie_word_embeddings=tied, **options)
