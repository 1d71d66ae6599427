"""Gemma 4 (Google, 2026), text: larger heads in full layers, whose values may be their keys.

Each layer's sum is multiplied by a number of its own. Some models have experts beside each MLP. In
the small ones (E2B, E4B) layers have inputs of their own, and the last layers use the keys and
values of earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    HeadSizes,
    optional_number,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import FREQUENCIES, DecoderConfig, LayerConfig
from quire_models.decoder.options.fused_names import LAYER, PARTS, renamed
from quire_models.decoder.options.layer_inputs_config import LayerInputsConfig
from quire_models.decoder.options.moe_config import DualMLPConfig, MoEConfig
from quire_models.decoder.options.routing_reading import read_routing

ROPES: Mapping[str, Mapping[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
PATTERN = 6  # one full layer in so many
EXPERT = f"{LAYER}.mlp.moe.experts.{{expert}}"
INPUT_RULES = renamed(
    {
        "model.embed_tokens_per_layer": "model.layer_inputs.table",
        "model.per_layer_model_projection": "model.layer_inputs.projection",
        "model.per_layer_projection_norm": "model.layer_inputs.norm",
        f"{LAYER}.per_layer_input_gate": f"{LAYER}.input_gate.gate",
        f"{LAYER}.per_layer_projection": f"{LAYER}.input_gate.projection",
        f"{LAYER}.post_per_layer_input_norm": f"{LAYER}.input_gate.norm",
    }
)
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
    sources = _sources(values, kinds)
    sliding = replace(
        _read_attention(values, read_heads(values), SLIDING),
        window=values.count("sliding_window"),
    )
    full = replace(
        _read_attention(values, _full_heads(values, kinds), FULL),
        has_key_values=values.flag("attention_k_eq_v", False),
    )
    has_experts = values.flag("enable_moe_block", False)
    mlp = read_mlp(values, activation="hidden_activation", default_activation="gelu_pytorch_tanh")
    widening = 2 if values.flag("use_double_wide_mlp", False) else 1
    mlps = {True: mlp, False: replace(mlp, width=widening * mlp.width)}  # by own keys and values
    norm = read_rms_norm(values, rounds_last=True)
    attentions = {FULL: full, SLIDING: sliding}
    layers = [
        LayerConfig(
            attention=replace(attentions[kind], key_values_of=source),
            mlp=_beside_experts(values, mlps[source is None])
            if has_experts
            else mlps[source is None],
        )
        for kind, source in zip(kinds, sources, strict=True)
    ]
    return read_decoder(
        values,
        layers,
        norm,
        placement="scaled_sandwich",
        layer_inputs=_read_layer_inputs(values, mlp.activation, norm),
        embedding_scale=values.count("hidden_size") ** 0.5,
        final_logit_soft_cap=optional_number(values, "final_logit_softcapping"),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
        weight_rules=INPUT_RULES + (MOE_RULES if has_experts else ()),
        ignored_weights=(FREQUENCIES, *_unused_weights(sources)),
    )


def _read_attention(values: ConfigValues, heads: HeadSizes, kind: str) -> AttentionConfig:
    """Return the attention of a type of layer; scores have no factor."""
    bias = values.flag("attention_bias", False)
    parameters = values.nested("rope_parameters").mapping(kind) or ROPES[kind]
    rope = ConfigValues(
        {
            "rope_parameters": parameters,
            "max_position_embeddings": values.count("max_position_embeddings"),
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
    sizes = read_heads(values)
    own = values.nested("per_layer_config").nested(str(kinds.index(FULL)))
    head_dim = own.count("head_dim", values.count("global_head_dim"))
    is_gated = values.flag("attention_k_eq_v", False)
    num_kv_heads = values.count("num_global_key_value_heads", sizes.num_kv_heads)
    default = num_kv_heads if is_gated else sizes.num_kv_heads
    return replace(sizes, head_dim=head_dim, num_kv_heads=own.count("num_key_value_heads", default))


def _layer_types(values: ConfigValues) -> tuple[str, ...]:
    """Return the type of each layer; the last one has full attention, whatever the file says."""
    kinds = read_layer_types(values, lambda i: SLIDING if (i + 1) % PATTERN else FULL)
    return (*kinds[:-1], FULL)


def _sources(values: ConfigValues, kinds: Sequence[str]) -> list[int | None]:
    """Return the layer whose keys and values each layer uses; None: it has its own.

    The last layers use those of the last layer of the same type before them.

    Raises:
        UnsupportedModelError: There is none of a type.
    """
    num_shared = values.whole("num_kv_shared_layers", 0)
    num_own = max(0, len(kinds) - num_shared)
    last = {kind: index for index, kind in enumerate(kinds[:num_own])}
    if missing := set(kinds) - set(last):
        raise UnsupportedModelError(
            f"{values.architecture}: num_kv_shared_layers ({num_shared}) of {len(kinds)} layers "
            f"leave no layer of the type {' and of '.join(sorted(missing))} with keys and values"
        )
    return [None if index < num_own else last[kind] for index, kind in enumerate(kinds)]


def _unused_weights(sources: Sequence[int | None]) -> tuple[str, ...]:
    """Return expressions for weights of keys and values that checkpoints have and no layer uses."""
    layers = "|".join(str(index) for index, source in enumerate(sources) if source is not None)
    if not layers:
        return ()
    return (rf".*\.layers\.({layers})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\..*",)


def _read_layer_inputs(
    values: ConfigValues, activation: str, norm: NormConfig
) -> LayerInputsConfig | None:
    """Return the options of the layers' inputs, if they have any.

    Raises:
        UnsupportedModelError: Some token ids have none.
    """
    size = values.whole("hidden_size_per_layer_input", 256)
    if not size:
        return None
    vocab_size, rows = (
        values.count("vocab_size"),
        values.count("vocab_size_per_layer_input", 262_144),
    )
    if rows < vocab_size:
        raise UnsupportedModelError(
            f"{values.architecture}: vocab_size_per_layer_input ({rows}) must be at least "
            f"vocab_size ({vocab_size}); other token ids have no inputs of layers"
        )
    return LayerInputsConfig(size=size, vocab_size=rows, activation=activation, norm=norm)


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
