"""Qwen 1.5, 2 and 3 with experts: dense layers between, and shared experts in the older ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.layers.config_values import ConfigValues
from quire.layers.moe.routing import Routing
from quire_models.decoder.attention_config import AttentionConfig, QKNormConfig
from quire_models.decoder.config_reading import (
    FULL,
    SLIDING,
    moe_layers,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.decoder_config import DecoderConfig
from quire_models.decoder.moe_config import MoEConfig


def read_qwen2_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of Qwen 2 with experts; every other layer may have a window."""
    full = read_attention(values, qkv_bias=values.flag("qkv_bias", True))
    is_used = values.flag("use_sliding_window", False)
    first_full = values.count("max_window_layers", 28)
    kinds = read_layer_types(
        values, lambda i: SLIDING if is_used and i % 2 == 0 and i < first_full else FULL
    )
    attentions = [full] * len(kinds)
    if SLIDING in kinds:
        sliding = replace(full, window=values.count("sliding_window", 4096))
        attentions = [sliding if kind == SLIDING else full for kind in kinds]
    shared = read_mlp(values, width="shared_expert_intermediate_size")
    return _read(values, attentions, 4, 60, shared=shared, has_shared_gate=True)


def read_qwen3_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of Qwen 3 with experts; all layers have a window, or none."""
    bias = values.flag("attention_bias", False)
    window = values.count("sliding_window", 4096) if _uses_window(values) else None
    attention = read_attention(
        values,
        heads=read_heads(values, num_kv_heads=4),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormConfig(norm=read_rms_norm(values)),
        window=window,
    )
    return _read(values, [attention] * values.count("num_hidden_layers"), 8, 128)


def _uses_window(values: ConfigValues) -> bool:
    return values.flag("use_sliding_window", False) and values.has("sliding_window")


def _read(
    values: ConfigValues,
    attentions: list[AttentionConfig],
    default_k: int,
    default_experts: int,
    **options: Any,
) -> DecoderConfig:
    key = "num_experts" if values.has("num_experts") else "num_local_experts"
    routing = Routing(
        num_experts=values.count(key, default_experts),
        top_k=values.count("num_experts_per_tok", default_k),
        renormalize=values.flag("norm_topk_prob", False),
    )
    expert = read_mlp(values, width="moe_intermediate_size")
    moe = MoEConfig(routing=routing, expert=expert, **options)
    layers = moe_layers(attentions, read_mlp(values), moe, _layers_with_experts(values))
    return read_decoder(values, layers, read_rms_norm(values))


def _layers_with_experts(values: ConfigValues) -> list[bool]:
    num_layers, step = values.count("num_hidden_layers"), values.count("decoder_sparse_step", 1)
    dense = values.wholes("mlp_only_layers")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers)]
