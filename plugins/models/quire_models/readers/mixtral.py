"""Mixtral (Mistral AI, 2023) and MiniMax-M2 (2025): all layers have experts."""

from __future__ import annotations

from typing import Any

from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire.layers.moe.routing import Routing
from quire_models.decoder.attention_config import QKNormConfig
from quire_models.decoder.config_reading import (
    optional_count,
    read_attention,
    read_decoder,
    read_heads,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.decoder_config import DecoderConfig
from quire_models.decoder.fused_names import BLOCK, LAYER, W123, renamed
from quire_models.decoder.moe_config import MoEConfig

CHOICE_BIAS = renamed(
    {f"{BLOCK}.e_score_correction_bias": f"{LAYER}.mlp.gate.e_score_correction_bias"}
)


def read_mixtral(values: ConfigValues) -> DecoderConfig:
    """Return the options of Mixtral: two of eight experts, whose weights sum to one."""
    attention = read_attention(values, window=optional_count(values, "sliding_window"))
    routing = read_routing(values, experts="num_local_experts", default_k=2, renormalize=True)
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
        default_k=8,
        score="sigmoid",
        has_choice_bias=True,
        renormalize=True,
    )
    layers = same_layers(values, attention, MoEConfig(routing=routing, expert=read_mlp(values)))
    return read_decoder(values, layers, norm, weight_rules=(*W123, *CHOICE_BIAS))


def read_routing(values: ConfigValues, *, experts: str, default_k: int, **options: Any) -> Routing:
    """Return the options of a router, from the key of the number of experts."""
    return Routing(
        num_experts=values.count(experts),
        top_k=values.count("num_experts_per_tok", default_k),
        **options,
    )
