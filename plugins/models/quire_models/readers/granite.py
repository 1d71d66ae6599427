"""Granite 3 (IBM, 2024): factors on embeddings, scores, the outputs of blocks, and logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig
from quire_models.decoder.options.fused_names import BLOCK, EXPERT, LAYER, renamed, renamed_norms
from quire_models.decoder.options.mlp_config import MLPConfig
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

SHARED_RULES = (
    WeightRule(
        f"{LAYER}.shared_mlp.input_linear",
        (f"{LAYER}.mlp.shared_expert.gate_proj", f"{LAYER}.mlp.shared_expert.up_proj"),
    ),
    WeightRule(f"{LAYER}.shared_mlp.output_linear", (f"{LAYER}.mlp.shared_expert.down_proj",)),
)
MOE_RULES = (
    WeightRule(f"{BLOCK}.router.layer", (f"{LAYER}.mlp.gate",)),
    WeightRule(f"{BLOCK}.input_linear", (f"{EXPERT}.gate_proj", f"{EXPERT}.up_proj")),
    WeightRule(f"{BLOCK}.output_linear", (f"{EXPERT}.down_proj",)),
    *SHARED_RULES,
)
WINDOW_MOE_RULES = (
    WeightRule(f"{BLOCK}.router", (f"{LAYER}.mlp.gate",)),
    WeightRule(
        f"{BLOCK}.experts.gate_up_proj",
        (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight"),
    ),
    WeightRule(f"{BLOCK}.experts.down_proj", (f"{EXPERT}.down_proj.weight",)),
    *SHARED_RULES,
)

SINKS = renamed({f"{LAYER}.self_attn.sinks": f"{LAYER}.self_attn.attention.sinks"})
CLOVA_NORMS = {
    "post_norm1": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_norm2": "post_feedforward_layernorm",
}


def read_granite(values: ConfigValues) -> DecoderConfig:
    """Return the options of Granite."""
    return _read(values, same_layers(values, _read_attention(values), _read_mlp(values)))


def read_granite_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of Granite with experts, and of those with a shared expert as well."""
    layers = same_layers(values, _read_attention(values), _read_experts(values))
    return _read(values, layers, weight_rules=MOE_RULES)


def read_granite_moe_swa(values: ConfigValues) -> DecoderConfig:
    """Return the options of Granite with experts and windows."""
    layers = _read_windows(values, _read_experts(values))
    return _read(values, layers, weight_rules=(*WINDOW_MOE_RULES, *SINKS))


def read_granite_swa(values: ConfigValues) -> DecoderConfig:
    """Return the options of Granite with windows."""
    return _read(values, _read_windows(values, _read_mlp(values)), weight_rules=SINKS)


def _read_experts(values: ConfigValues) -> MoEConfig:
    routing = read_routing(values, experts="num_local_experts", score="top_k_softmax")
    shared = values.whole("shared_intermediate_size", 0)  # 0: there is none
    return MoEConfig(
        routing=routing,
        expert=read_mlp(values),
        shared=read_mlp(values, width="shared_intermediate_size") if shared else None,
    )


def _read_windows(values: ConfigValues, mlp: MLPConfig | MoEConfig) -> tuple[LayerConfig, ...]:
    """Return layers with sinks, of which some have windows; each has its own rotary embedding."""
    rope, plain = read_rope(values), replace(_read_attention(values), rope=None, has_sinks=True)
    window = values.count("sliding_window", 128)
    kinds = read_layer_types(values, lambda i: SLIDING if i % 4 else FULL)
    return tuple(
        LayerConfig(
            attention=replace(
                plain,
                window=window if kind == SLIDING else None,
                rope=replace(rope, theta=theta) if theta else None,
            ),
            mlp=mlp,
        )
        for kind, theta in zip(kinds, _thetas(values, rope.theta), strict=True)
    )


def _thetas(values: ConfigValues, default: float) -> list[float]:
    """Return the base of each layer's rotary embedding; 0: the layer has none."""
    num_layers = values.count("num_hidden_layers")
    thetas = values.config.get("layer_rope_theta")
    if thetas is None:
        return [default] * num_layers
    if not isinstance(thetas, list) or len(thetas) != num_layers or not all(map(_is_base, thetas)):
        raise UnsupportedModelError(
            f"{values.architecture}: layer_rope_theta in config.json must have a number from 0 for "
            f"each of the {num_layers} layers, got {thetas!r}"
        )
    return list(map(float, thetas))


def _is_base(theta: object) -> bool:
    return isinstance(theta, int | float) and not isinstance(theta, bool) and theta >= 0


def read_hyperclovax(values: ConfigValues) -> DecoderConfig:
    """Return the options of HyperCLOVA X: logits are multiplied, outputs may be normalised."""
    head_dim = read_heads(values).head_dim
    attention = _read_attention(values, head_dim**-0.5)
    decoder = _read(
        values,
        same_layers(values, attention, _read_mlp(values)),
        logit_scale=values.positive("logits_scaling", 1.0),
    )
    if not values.flag("use_post_norm", False):
        return decoder
    return replace(decoder, placement="sandwich", weight_rules=renamed_norms(CLOVA_NORMS))


def _read_attention(values: ConfigValues, scale: float = 1.0) -> AttentionConfig:
    """Return the options of attention.

    Args:
        values: Values of config.json.
        scale: Default of `attention_multiplier`.
    """
    bias = values.flag("attention_bias", False)
    return read_attention(
        values,
        scale=values.positive("attention_multiplier", scale),
        qkv_bias=bias,
        output_bias=bias,
    )


def _read_mlp(values: ConfigValues) -> MLPConfig:
    return read_mlp(values, has_bias=values.flag("mlp_bias", False))


def _read(values: ConfigValues, layers: Sequence[LayerConfig], **options: Any) -> DecoderConfig:
    """Return the options of a decoder with factors; logits are divided by `logits_scaling`."""
    return read_decoder(
        values,
        layers,
        read_rms_norm(values),
        embedding_scale=values.positive("embedding_multiplier", 1.0),
        residual_scale=values.positive("residual_multiplier", 1.0),
        **{"logit_scale": 1.0 / values.positive("logits_scaling", 1.0), **options},
    )
