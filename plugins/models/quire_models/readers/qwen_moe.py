"""Qwen 1.5, 2 and 3 with experts: dense layers between, and shared experts in the older ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.interfaces.weight_rules import WeightRule
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_with_experts,
    moe_layers,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    read_rope_of,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import EXPERT, LAYER
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

STACKS = (  # published as [in, out]; transformers writes [out, in]
    WeightRule(
        f"{LAYER}.mlp.experts.gate_up_proj",
        (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight"),
        may_be_transposed=True,
    ),
    WeightRule(
        f"{LAYER}.mlp.experts.down_proj",
        (f"{EXPERT}.down_proj.weight",),
        may_be_transposed=True,
    ),
)


def read_qwen2_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of Qwen 2 with experts; every other layer may have a window."""
    full = read_attention(values, qkv_bias=values.flag("qkv_bias", True))
    is_used = values.flag("use_sliding_window", False)
    first_full = values.whole("max_window_layers", 28)
    kinds = read_layer_types(
        values, lambda i: SLIDING if is_used and i % 2 == 0 and i < first_full else FULL
    )
    attentions = [full] * len(kinds)
    if SLIDING in kinds:
        sliding = replace(full, window=values.count("sliding_window", 4096))
        attentions = [sliding if kind == SLIDING else full for kind in kinds]
    shared = read_mlp(values, width="shared_expert_intermediate_size")
    is_moe = _layers_with_experts(values)
    return _read(values, attentions, is_moe, shared=shared, has_shared_gate=True)


def read_qwen3_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of Qwen 3 with experts; all layers have a window, or none."""
    bias = values.flag("attention_bias", False)
    window = values.count("sliding_window", 4096) if _uses_window(values) else None
    attention = read_attention(
        values,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormConfig(norm=read_rms_norm(values)),
        window=window,
    )
    is_moe = _layers_with_experts(values)
    return _read(values, [attention] * len(is_moe), is_moe)


def read_mellum(values: ConfigValues) -> DecoderConfig:
    """Return the options of Mellum 2: windows, and a rotary embedding for each type of layer."""
    bias = values.flag("attention_bias", False)
    kinds = read_layer_types(values)
    plain = read_attention(
        values,
        rope=read_rope_of(values, FULL),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormConfig(norm=read_rms_norm(values)),
    )
    attentions = {FULL: plain}
    if SLIDING in kinds:
        window = values.count("sliding_window")
        attentions[SLIDING] = replace(plain, rope=read_rope_of(values, SLIDING), window=window)
    is_moe = layers_with_experts(values, 0)
    return _read(values, [attentions[kind] for kind in kinds], is_moe)


def read_qwen3_vl_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of the text model of Qwen 3 VL with experts, which are stacked."""
    bias = values.flag("attention_bias", False)
    attention = read_attention(
        values,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormConfig(norm=read_rms_norm(values)),
    )
    is_moe = _layers_with_experts(values)
    decoder = _read(values, [attention] * len(is_moe), is_moe, is_divided=True)
    return replace(decoder, weight_rules=STACKS)


def _uses_window(values: ConfigValues) -> bool:
    return values.flag("use_sliding_window", False) and values.has("sliding_window")


def _read(
    values: ConfigValues,
    attentions: list[AttentionConfig],
    is_moe: list[bool],
    *,
    is_divided: bool | None = None,
    **options: Any,
) -> DecoderConfig:
    key = "num_experts" if values.has("num_experts") else "num_local_experts"
    routing = read_routing(
        values,
        experts=key,
        renormalize=values.flag("norm_topk_prob", False) if is_divided is None else is_divided,
    )
    expert = read_mlp(values, width="moe_intermediate_size")
    moe = MoEConfig(routing=routing, expert=expert, **options)
    layers = moe_layers(attentions, read_mlp(values), moe, is_moe)
    return read_decoder(values, layers, read_rms_norm(values))


def _layers_with_experts(values: ConfigValues) -> list[bool]:
    num_layers, step = values.count("num_hidden_layers"), values.count("decoder_sparse_step", 1)
    dense = values.wholes("mlp_only_layers")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)]
