"""gpt-oss (OpenAI, 2025): sinks, windows in every other layer, and experts with clamped gates.

The weights of all experts are stacked, transposed, and gate and up projections alternate row by
row.
"""

from __future__ import annotations

from dataclasses import replace

from quire.interfaces.weight_rules import WeightRule
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import EXPERT, LAYER
from quire_models.decoder.options.moe_config import ClampedGate, MoEConfig
from quire_models.decoder.options.routing_reading import read_routing


def read_gpt_oss(values: ConfigValues) -> DecoderConfig:
    """Return the options of gpt-oss."""
    bias = values.flag("attention_bias", True)
    full = read_attention(
        values,
        qkv_bias=bias,
        output_bias=bias,
        has_sinks=True,
    )
    sliding = replace(full, window=values.count("sliding_window", 128))
    kinds = read_layer_types(values, lambda i: FULL if i % 2 else SLIDING)
    expert = read_mlp(values, has_bias=True)
    moe = MoEConfig(
        routing=read_routing(
            values, experts="num_local_experts", score="top_k_softmax", has_bias=True
        ),
        expert=expert,
        clamped_gate=ClampedGate(
            alpha=values.positive("swiglu_alpha", 1.702), limit=values.positive("swiglu_limit", 7.0)
        ),
    )
    return read_decoder(
        values,
        layers_by_type(kinds, {FULL: full, SLIDING: sliding}, moe),
        read_rms_norm(values, 1e-5, rounds_last=True),
        weight_rules=_rules(expert.width),
    )


def _rules(width: int) -> tuple[WeightRule, ...]:
    experts = f"{LAYER}.mlp.experts"
    gate_up, down = (f"{EXPERT}.gate_proj", f"{EXPERT}.up_proj"), (f"{EXPERT}.down_proj",)
    found = [
        WeightRule(f"{LAYER}.mlp.router", (f"{LAYER}.mlp.gate",)),
        WeightRule(f"{LAYER}.self_attn.sinks", (f"{LAYER}.self_attn.attention.sinks",)),
    ]
    for name, parts, groups in (("gate_up_proj", gate_up, width), ("down_proj", down, 1)):
        for suffix, parameter in (("", "weight"), ("_bias", "bias")):
            whole = tuple(f"{part}.{parameter}" for part in parts)
            rule = WeightRule(f"{experts}.{name}{suffix}", whole, groups, transposed=True)
            found.append(rule)
    return tuple(found)
