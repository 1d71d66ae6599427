"""Gemma 4 (Google, 2026), text: larger heads in full layers, whose values may be their keys.

Each layer's sum is multiplied by a number of its own. Some models have experts beside each MLP.
Models with inputs for each layer or shared key/value caches (E2B, E4B) are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    HeadSizes,
    layers_by_type,
    optional_number,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    refuse_flag,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import LAYER, PARTS, renamed
from quire_models.decoder.options.moe_config import DualMLPConfig, MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

ROPES: Mapping[str, Mapping[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
PATTERN = 6  # one full layer in so many
EXPERT = f"{LAYER}.mlp.moe.experts.{{expert}}"
MOE_RULES = (
    *renamed({f"{LAYER}.mlp.{part}_proj": f"{LAYER}.mlp.dense.{part}_proj" for part in PARTS}),
    *renamed(
        {
            f"{LAYER}.router.proj": f"{LAYER}.mlp.moe.gate",
            f"{LAYER}.router.scale": f"{LAYER}.mlp.moe.gate.scale",
            f"{LAYER}.router.per_expert_scale": f"{LAYER}.mlp.moe.gate.per_expert_scale",
            f"{LAYER}.post_feedforward_layernorm_1": f"{LAYER}.mlp.dense_norm",
            f"{LAYER}.pre_feedforward_layernorm_2": f"{LAYER}.mlp.moe_input_norm",
            f"{LAYER}.post_feedforward_layernorm_2": f"{LAYER}.mlp.moe_norm",
        }
    ),
    WeightRule(
        f"{LAYER}.experts.gate_up_proj",
        (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight"),
    ),
    WeightRule(f"{LAYER}.experts.down_proj", (f"{EXPERT}.down_proj.weight",)),
)


def read_gemma4(values: ConfigValues) -> DecoderConfig:
    """Return the options of Gemma 4, text."""
    _refuse_unsupported(values)
    kinds = _layer_types(values)
    sliding = replace(
        _read_attention(values, read_heads(values, head_dim=256, num_kv_heads=4), SLIDING),
        window=values.count("sliding_window", 512),
    )
    full = replace(
        _read_attention(values, _full_heads(values, kinds), FULL),
        has_key_values=values.flag("attention_k_eq_v", False),
    )
    has_experts = values.flag("enable_moe_block", False)
    mlp = read_mlp(values, activation="hidden_activation", default_activation="gelu_pytorch_tanh")
    both = _beside_experts(values, mlp) if has_experts else mlp
    return read_decoder(
        values,
        layers_by_type(kinds, {FULL: full, SLIDING: sliding}, both),
        read_rms_norm(values, rounds_last=True),
        placement="scaled_sandwich",
        embedding_scale=values.count("hidden_size") ** 0.5,
        final_logit_soft_cap=optional_number(values, "final_logit_softcapping"),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
        weight_rules=MOE_RULES if has_experts else (),
    )


def _read_attention(values: ConfigValues, heads: HeadSizes, kind: str) -> AttentionConfig:
    """Return the attention of a type of layer; scores have no factor."""
    bias = values.flag("attention_bias", False)
    parameters = values.nested("rope_parameters").mapping(kind) or ROPES[kind]
    rope = ConfigValues(
        {
            "rope_parameters": parameters,
            "max_position_embeddings": values.count("max_position_embeddings", 131_072),
        },
        values.architecture,
    )
    return read_attention(
        values,
        heads=heads,
        rope=read_rope(rope, head_dim=heads.head_dim),
        scale=1.0,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormConfig(norm=read_rms_norm(values, rounds_last=True)),
        has_value_norm=True,
    )


def _full_heads(values: ConfigValues, kinds: tuple[str, ...]) -> HeadSizes:
    """Return the heads of full layers: their keys, or the first entry of `per_layer_config`."""
    sizes = read_heads(values, head_dim=256, num_kv_heads=4)
    own = values.nested("per_layer_config").nested(str(kinds.index(FULL)))
    head_dim = own.count("head_dim", values.count("global_head_dim", 512))
    is_gated = values.flag("attention_k_eq_v", False)
    num_kv_heads = values.count("num_global_key_value_heads", sizes.num_kv_heads)
    default = num_kv_heads if is_gated else sizes.num_kv_heads
    return replace(sizes, head_dim=head_dim, num_kv_heads=own.count("num_key_value_heads", default))


def _layer_types(values: ConfigValues) -> tuple[str, ...]:
    """Return the type of each layer; the last one has full attention, whatever the file says."""
    kinds = read_layer_types(values, lambda i: SLIDING if (i + 1) % PATTERN else FULL)
    return (*kinds[:-1], FULL)


def _beside_experts(values: ConfigValues, mlp: Any) -> DualMLPConfig:
    norm = read_rms_norm(values, rounds_last=True)
    routing = read_routing(
        values,
        experts="num_experts",
        top_k="top_k_experts",
        renormalize=True,
        input_norm_eps=norm.eps,
        has_expert_scale=True,
    )
    expert = replace(mlp, width=values.count("moe_intermediate_size"))
    return DualMLPConfig(mlp=mlp, moe=MoEConfig(routing=routing, expert=expert), norm=norm)


def _refuse_unsupported(values: ConfigValues) -> None:
    if values.text("use_bidirectional_attention", "vision") != "vision":
        raise UnsupportedModelError(
            f"{values.architecture}: use_bidirectional_attention is not supported; quire attends "
            "causally"
        )
    refuse_flag(values, "use_double_wide_mlp", "no key/value cache is shared by layers")
    for key, default in (("hidden_size_per_layer_input", 256), ("num_kv_shared_layers", 0)):
        if values.whole(key, default):
            raise UnsupportedModelError(
                f"{values.architecture}: {key} is {values.whole(key, default)}; models with inputs "
                "for each layer or shared key/value caches are not supported"
            )
