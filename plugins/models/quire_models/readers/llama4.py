"""Llama 4, text (Meta, 2025): chunked attention, layers without rotation, and one expert a token.

Queries and keys are normalised without weights after the rotation. A rotation does not change
lengths, so the norm may come before it.
"""

from __future__ import annotations

from dataclasses import replace

from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import (
    AttentionConfig,
    NormConfig,
    QKNormConfig,
    QueryScaling,
)
from quire_models.decoder.options.config_reading import (
    CHUNKED,
    FULL,
    layers_with_rope,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig
from quire_models.decoder.options.fused_names import EXPERT, LAYER, PARTS, renamed
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

THEIRS = f"{LAYER}.feed_forward"
RULES = (
    *renamed(
        {
            f"{THEIRS}.router": f"{LAYER}.mlp.gate",
            **{f"{THEIRS}.{part}_proj": f"{LAYER}.mlp.{part}_proj" for part in PARTS},
            **{
                f"{THEIRS}.shared_expert.{part}_proj": f"{LAYER}.mlp.shared_expert.{part}_proj"
                for part in PARTS
            },
        }
    ),
    WeightRule(
        f"{THEIRS}.experts.gate_up_proj",
        (f"{EXPERT}.gate_proj.weight", f"{EXPERT}.up_proj.weight"),
        transposed=True,
    ),
    WeightRule(f"{THEIRS}.experts.down_proj", (f"{EXPERT}.down_proj.weight",), transposed=True),
)


def read_llama4(values: ConfigValues) -> DecoderConfig:
    """Return the options of Llama 4, text."""
    num_layers = values.count("num_hidden_layers")
    rotated, plain = _attentions(values)
    has_rope = layers_with_rope(values, values.wholes("no_rope_layers") or None)
    kinds = read_layer_types(
        values, lambda i: CHUNKED if has_rope[i] else FULL, known=(FULL, CHUNKED)
    )
    chunk = values.count("attention_chunk_size", 8192) if CHUNKED in kinds else None
    moe, dense = _read_moe(values), read_mlp(values, width="intermediate_size_mlp")
    step = values.count("interleave_moe_layer_step", 1)
    moe_layers = values.wholes("moe_layers") or range(step - 1, num_layers, step)
    layers = [
        LayerConfig(
            attention=replace(
                rotated if has_rope[i] else plain, chunk=chunk if kind == CHUNKED else None
            ),
            mlp=moe if i in moe_layers else dense,
        )
        for i, kind in enumerate(kinds)
    ]
    return read_decoder(values, layers, read_rms_norm(values, 1e-5), weight_rules=RULES)


def _attentions(values: ConfigValues) -> tuple[AttentionConfig, AttentionConfig]:
    """Return attention with a rotary embedding, and without."""
    heads, bias = read_heads(values), values.flag("attention_bias", False)
    rope = read_rope(values, head_dim=heads.head_dim, is_interleaved=True)
    norm = NormConfig(eps=values.positive("rms_norm_eps", 1e-5), has_weight=False)
    has_norm = values.flag("use_qk_norm", True)
    rotated = read_attention(
        values,
        heads=heads,
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormConfig(norm=norm) if has_norm else None,
    )
    is_tuned = values.flag("attn_temperature_tuning", True)
    scaling = QueryScaling(
        beta=values.positive("attn_scale", 0.1),
        length=int(values.positive("floor_scale", 8192)),
        shift=1,
    )
    plain = replace(rotated, rope=None, qk_norm=None, query_scaling=scaling if is_tuned else None)
    return rotated, plain


def _read_moe(values: ConfigValues) -> MoEConfig:
    routing = read_routing(
        values, experts="num_local_experts", score="top_k_sigmoid", scales_input=True
    )
    mlp = read_mlp(values)
    return MoEConfig(routing=routing, expert=mlp, shared=mlp)
