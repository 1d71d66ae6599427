"""Mixtral (Mistral AI, 2023) and MiniMax-M2 (2025): all layers have experts."""

from __future__ import annotations

from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import QKNormConfig
from quire_models.decoder.options.config_reading import (
    optional_count,
    read_attention,
    read_decoder,
    read_heads,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import BLOCK, LAYER, W123, renamed
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

CHOICE_BIAS = renamed(
    {f"{BLOCK}.e_score_correction_bias": f"{LAYER}.mlp.gate.e_score_correction_bias"}
)


def read_mixtral(values: ConfigValues) -> DecoderConfig:
    """Return the options of Mixtral: two of eight experts, whose weights sum to one."""
    attention = read_attention(values, window=optional_count(values, "sliding_window"))
    routing = read_routing(values, experts="num_local_experts", renormalize=True)
    layers = same_layers(values, attention, MoEConfig(routing=routing, expert=read_mlp(values)))
    return read_decoder(values, layers, read_rms_norm(values, 1e-5), weight_rules=W123)


def read_minimax_m2(values: ConfigValues) -> DecoderConfig:
    """Return the options of MiniMax-M2: sigmoid scores, and norms of whole projections."""
    heads, norm = read_heads(values), read_rms_norm(values)
    rotary_dim = optional_count(values, "rotary_dim")
    factor = 1.0 if rotary_dim is None else rotary_dim / heads.head_dim
    attention = read_attention(
        values,
        heads=heads,
        rope=read_rope(values, head_dim=heads.head_dim, partial_factor=factor),
        qk_norm=QKNormConfig(norm=norm, over="whole"),
    )
    routing = read_routing(
        values,
        experts="num_local_experts",
        score="sigmoid",
        has_choice_bias=True,
        renormalize=True,
    )
    layers = same_layers(values, attention, MoEConfig(routing=routing, expert=read_mlp(values)))
    return read_decoder(values, layers, norm, weight_rules=(*W123, *CHOICE_BIAS))
