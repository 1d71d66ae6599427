"""Phi-3.5-MoE (Microsoft, 2024): LayerNorm, biases, and a router of two sparse softmaxes."""

from __future__ import annotations

from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    optional_count,
    read_attention,
    read_decoder,
    read_layer_norm,
    read_mlp,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import W123
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing


def read_phimoe(values: ConfigValues) -> DecoderConfig:
    """Return the options of Phi-3.5-MoE."""
    bias = values.flag("attention_bias", False)
    attention = read_attention(
        values,
        qkv_bias=bias,
        output_bias=bias,
        window=optional_count(values, "sliding_window"),
    )
    routing = read_routing(
        values,
        experts="num_local_experts",
        score="sparsemixer",
        sparsemixer_threshold=2 * values.positive("router_jitter_noise", 0.01),
    )
    moe = MoEConfig(routing=routing, expert=read_mlp(values))
    return read_decoder(
        values,
        same_layers(values, attention, moe),
        read_layer_norm(values, "rms_norm_eps"),
        head_bias=values.flag("lm_head_bias", False),
        weight_rules=W123,
    )
