"""DeepSeek-V2 and V3, descendants of V3, GLM-4.7-Flash: latent attention, many small experts."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.layers.attention.rope_parameters import RopeParameters, read_rope, yarn_magnitude
from quire.layers.attention.rope_scaling import YarnScaling
from quire.layers.config_values import ConfigValues
from quire.layers.moe.routing import Routing
from quire_models.decoder.options.attention_config import NormConfig
from quire_models.decoder.options.config_reading import (
    moe_layers,
    read_decoder,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import SHARED_EXPERTS
from quire_models.decoder.options.mla_config import MLAConfig
from quire_models.decoder.options.moe_config import MoEConfig
from quire_models.decoder.options.routing_reading import read_routing
from quire_models.decoder.options.sigmoid_moe import read_shared, read_sigmoid_moe

LATENT_NORM = NormConfig(eps=1e-6)  # whatever the epsilon of the other norms


def read_deepseek_v3(values: ConfigValues) -> DecoderConfig:
    """Return the options of DeepSeek-V3, V3.1 and R1, and of Kimi-K2."""
    return _read_v3(values, 1e-6)


def read_glm4_moe_lite(values: ConfigValues) -> DecoderConfig:
    """Return the options of GLM-4.7-Flash: as DeepSeek-V3, but for the default of an epsilon."""
    return _read_v3(values, 1e-5)


def read_deepseek_v2(values: ConfigValues) -> DecoderConfig:
    """Return the options of DeepSeek-V2, whose experts are chosen by softmax scores."""
    num_layers = values.count("num_hidden_layers")
    attentions = [read_latent_attention(values, is_interleaved=True)] * num_layers
    first = values.whole("first_k_dense_replace", 0)
    expert, shared = read_mlp(values, width="moe_intermediate_size"), read_shared(values)
    bias = values.flag("mlp_bias", False)  # of MLPs, not of experts
    shared = None if shared is None else replace(shared, has_bias=bias)
    moe = MoEConfig(routing=_read_routing(values), expert=expert, shared=shared)
    is_moe = [layer >= first for layer in range(num_layers)]
    layers = moe_layers(attentions, read_mlp(values, has_bias=bias), moe, is_moe)
    return read_decoder(values, layers, read_rms_norm(values), weight_rules=SHARED_EXPERTS)


def _read_v3(values: ConfigValues, eps: float) -> DecoderConfig:
    attention = read_latent_attention(values, values.flag("rope_interleave", True))
    return read_sigmoid_moe(values, [attention] * values.count("num_hidden_layers"), eps)


def read_latent_attention(values: ConfigValues, is_interleaved: bool) -> MLAConfig:
    """Return the options of latent attention.

    Args:
        values: Values of config.json.
        is_interleaved: Whether neighbouring elements are rotated together.
    """
    nope_dim, rope_dim = values.count("qk_nope_head_dim"), values.count("qk_rope_head_dim")
    rope = read_rope(values, head_dim=rope_dim, is_interleaved=is_interleaved)
    return MLAConfig(
        num_heads=values.count("num_attention_heads"),
        query_rank=values.count("q_lora_rank") if values.has("q_lora_rank") else None,
        latent_dim=values.count("kv_lora_rank"),
        rope_dim=rope_dim,
        nope_dim=nope_dim,
        value_dim=values.count("v_head_dim"),
        scale=(nope_dim + rope_dim) ** -0.5 * _magnitude(values, rope) ** 2,
        rope=rope,
        norm=LATENT_NORM,
        has_bias=values.flag("attention_bias", False),
    )


def _magnitude(values: ConfigValues, rope: RopeParameters) -> float:
    """Return the factor on queries and on keys that a rotary embedding by YaRN brings along."""
    found = values.mapping("rope_scaling") or values.mapping("rope_parameters")
    scaling = ConfigValues(found, values.architecture, prefix="rope_parameters.")
    if not isinstance(rope.scaling, YarnScaling) or not scaling.config.get("mscale_all_dim"):
        return 1.0
    return yarn_magnitude(rope.scaling.factor, scaling.positive("mscale_all_dim"))


def _read_routing(values: ConfigValues) -> Routing:
    """Return the options of V2's router; its weights are never divided by their sum."""
    method = values.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModelError(
            f"{values.architecture}: topk_method {method!r} is not supported; it must be greedy or "
            "group_limited_greedy"
        )
    return read_routing(
        values,
        experts="n_routed_experts",
        has_groups=method == "group_limited_greedy",
        scale=values.positive("routed_scaling_factor", 1.0),
    )
