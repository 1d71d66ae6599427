"""Hunyuan (Tencent, 2025), dense and with experts: norms of queries and keys.

They come after the rotation, in Hunyuan 3 before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_mlp,
    read_rms_norm,
    refuse_flag,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig
from quire_models.decoder.options.fused_names import LAYER, PARTS, renamed
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing
from quire_models.decoder.options.sigmoid_moe import read_sigmoid_moe

NORMS = renamed(
    {
        f"{LAYER}.self_attn.query_layernorm": f"{LAYER}.self_attn.q_norm",
        f"{LAYER}.self_attn.key_layernorm": f"{LAYER}.self_attn.k_norm",
    }
)
SHARED_MLP = {
    f"{LAYER}.mlp.shared_mlp.{part}_proj": f"{LAYER}.mlp.shared_expert.{part}_proj"
    for part in PARTS
}
EXPERTS = renamed(
    {
        f"{LAYER}.mlp.gate.wg": f"{LAYER}.mlp.gate",
        **SHARED_MLP,
    }
)

SIGMOID_KEYS = {
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "routed_scaling_factor": "router_scaling_factor",
}
ROUTER = {"norm_topk_prob": True, "n_group": 1, "topk_group": 1}  # not keys of the family
SIGMOID_NAMES = renamed(
    {
        f"{LAYER}.mlp.router.gate": f"{LAYER}.mlp.gate",
        f"{LAYER}.mlp.expert_bias": f"{LAYER}.mlp.gate.e_score_correction_bias",
        **SHARED_MLP,
    }
)


def read_hunyuan(values: ConfigValues) -> DecoderConfig:
    """Return the options of Hunyuan without experts."""
    layers = same_layers(values, _read_attention(values), read_mlp(values))
    return _read(values, layers, weight_rules=NORMS)


def read_hunyuan_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of Hunyuan with experts; layers may use different numbers of them."""
    attention, mlp = _read_attention(values), read_mlp(values)
    layers = [
        LayerConfig(
            attention=attention,
            mlp=MoEConfig(
                routing=read_routing(
                    values.with_values({"moe_topk": top_k}),
                    experts="num_experts",
                    top_k="moe_topk",
                    renormalize=True,
                ),
                expert=mlp,
                shared=mlp,
            ),
        )
        for top_k in _experts_per_token(values)
    ]
    return _read(values, layers, weight_rules=(*NORMS, *EXPERTS))


def read_hunyuan3(values: ConfigValues) -> DecoderConfig:
    """Return the options of Hunyuan 3, with experts as DeepSeek-V3 has them."""
    refuse_flag(values, "mlp_bias", "no published model has it")
    bias, norm = values.flag("attention_bias", False), read_rms_norm(values, 1e-5)
    attention = read_attention(
        values, qkv_bias=bias, output_bias=bias, qk_norm=QKNormConfig(norm=norm)
    )
    attentions = [attention] * values.count("num_hidden_layers")
    values = replace(values.with_values(ROUTER), aliases=SIGMOID_KEYS)
    decoder = read_sigmoid_moe(values, attentions)
    return replace(decoder, weight_rules=SIGMOID_NAMES)


def _read_attention(values: ConfigValues) -> AttentionConfig:
    bias = values.flag("attention_bias", False)
    norm = QKNormConfig(norm=read_rms_norm(values, 1e-5), is_after_rope=True)
    return read_attention(values, qkv_bias=bias, output_bias=bias, qk_norm=norm)


def _read(values: ConfigValues, layers: Sequence[LayerConfig], **options: Any) -> DecoderConfig:
    return read_decoder(values, layers, read_rms_norm(values, 1e-5), **options)


def _experts_per_token(values: ConfigValues) -> list[int]:
    num_layers = values.count("num_hidden_layers")
    if not isinstance(values.config.get("moe_topk"), list):
        return [values.count("moe_topk")] * num_layers
    counts = list(values.wholes("moe_topk"))
    if len(counts) != num_layers:
        raise UnsupportedModelError(
            f"{values.architecture}: moe_topk in config.json must be a number, or one for each of "
            f"the {num_layers} layers, got {counts!r}"
        )
    return counts
