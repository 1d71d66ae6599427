"""OLMo (Ai2): version 1 has norms without parameters, later ones norms of outputs.

From version 2 on, and in the models with experts, whole projections of queries and keys are
normalised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    optional_number,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    read_rope_of,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing


def read_olmo(values: ConfigValues) -> DecoderConfig:
    """Return the options of OLMo 1."""
    bias = values.flag("attention_bias", False)
    attention = read_attention(
        values, qkv_bias=bias, output_bias=bias, clip=optional_number(values, "clip_qkv")
    )
    norm = NormConfig(kind="layer", eps=1e-5, has_weight=False)
    return read_decoder(values, same_layers(values, attention, read_mlp(values)), norm)


def read_olmo2(values: ConfigValues) -> DecoderConfig:
    """Return the options of OLMo 2."""
    norm = _norm(values)
    layers = same_layers(values, _read_attention(values, norm), read_mlp(values))
    return read_decoder(values, layers, norm, placement="post")


def read_olmo3(values: ConfigValues) -> DecoderConfig:
    """Return the options of OLMo 3: windows, and a rotary embedding for each type of layer."""
    norm = _norm(values)
    kinds = read_layer_types(values, lambda i: SLIDING if (i + 1) % 4 else FULL)
    full = _read_attention(values, norm, read_rope_of(values, FULL))
    sliding = replace(
        _read_attention(values, norm, read_rope_of(values, SLIDING)),
        window=values.count("sliding_window", 4096),
    )
    layers = layers_by_type(kinds, {FULL: full, SLIDING: sliding}, read_mlp(values))
    return read_decoder(values, layers, norm, placement="post")


def read_olmoe(values: ConfigValues) -> DecoderConfig:
    """Return the options of OLMoE; its norms are of inputs."""
    norm = read_rms_norm(values, 1e-5)
    return _read_experts(values, norm)


def read_flex_olmo(values: ConfigValues) -> DecoderConfig:
    """Return the options of FlexOlmo."""
    norm = _norm(values, 1e-6)
    return _read_experts(values, norm, placement="post")


def _read_experts(values: ConfigValues, norm: NormConfig, **options: Any) -> DecoderConfig:
    routing = read_routing(
        values, experts="num_experts", renormalize=values.flag("norm_topk_prob", False)
    )
    moe = MoEConfig(routing=routing, expert=read_mlp(values))
    layers = same_layers(values, _read_attention(values, norm), moe)
    return read_decoder(values, layers, norm, **options)


def _norm(values: ConfigValues, default: float = 1e-5) -> NormConfig:
    return read_rms_norm(values, default, rounds_last=True)


def _read_attention(
    values: ConfigValues, norm: NormConfig, rope: RopeParameters | None = None
) -> AttentionConfig:
    bias = values.flag("attention_bias", False)
    return read_attention(
        values,
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
        clip=optional_number(values, "clip_qkv"),
        qk_norm=QKNormConfig(norm=norm, over="whole"),
    )
