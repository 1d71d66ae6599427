"""Gemma 1 to 3: norms around one, scaled embeddings, and windows in most layers from version 2 on.

transformers 5 writes `layer_types` and, for Gemma 3, `rope_parameters` for each of them; version 4
wrote `sliding_window_pattern`, `rope_theta`, `rope_local_base_freq` and `rope_scaling`. Both are
supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.layers.attention.rope_parameters import RopeParameters, read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    optional_number,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    refuse_flag,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import renamed_norms

GELU = "gelu_pytorch_tanh"


def read_gemma(values: ConfigValues) -> DecoderConfig:
    """Return the options of Gemma 1, whose GELU is the one by tanh, whatever old files say."""
    _refuse_bidirectional(values)
    bias = values.flag("attention_bias", False)
    heads = read_heads(values)
    attention = read_attention(values, heads=heads, qkv_bias=bias, output_bias=bias)
    mlp = read_mlp(values, default_activation=GELU)
    if mlp.activation == "gelu":  # of old files, trained with the other form
        mlp = replace(mlp, activation=GELU)
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        _norm(values),
        embedding_scale=values.count("hidden_size") ** 0.5,
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
    )


def read_gemma2(values: ConfigValues) -> DecoderConfig:
    """Return the options of Gemma 2: every other layer has a window, and scores are capped."""
    full = replace(
        _scaled_attention(values), logit_soft_cap=optional_number(values, "attn_logit_softcapping")
    )
    sliding = replace(full, window=values.count("sliding_window", 4096))
    kinds = read_layer_types(values, lambda i: FULL if i % 2 else SLIDING)
    return _read_sandwich(values, kinds, {FULL: full, SLIDING: sliding})


def read_vault_gemma(values: ConfigValues) -> DecoderConfig:
    """Return the options of VaultGemma: as Gemma 2, with norms of inputs only."""
    rules = renamed_norms({"pre_feedforward_layernorm": "post_attention_layernorm"})
    return replace(read_gemma2(values), placement="pre", weight_rules=rules)


def read_gemma3(values: ConfigValues) -> DecoderConfig:
    """Return the options of Gemma 3: a norm of queries and keys, and two rotary embeddings."""
    if optional_number(values, "attn_logit_softcapping") is not None:
        raise UnsupportedModelError(
            f"{values.architecture}: attn_logit_softcapping is not supported; Gemma 3 is trained "
            "without it"
        )
    pattern = values.count("sliding_window_pattern", 6)
    kinds = read_layer_types(values, lambda i: SLIDING if (i + 1) % pattern else FULL)
    whole, local = _read_ropes(values)
    full = replace(_scaled_attention(values), rope=whole, qk_norm=QKNormConfig(norm=_norm(values)))
    attentions = {FULL: full}
    if SLIDING in kinds:
        attentions[SLIDING] = replace(full, rope=local, window=values.count("sliding_window"))
    return _read_sandwich(values, kinds, attentions)


def _read_sandwich(
    values: ConfigValues, kinds: tuple[str, ...], attentions: Mapping[str, AttentionConfig]
) -> DecoderConfig:
    """Return the options that Gemma 2 and 3 have in common."""
    _refuse_bidirectional(values)
    mlp = read_mlp(values, activation="hidden_activation", default_activation=GELU)
    return read_decoder(
        values,
        layers_by_type(kinds, attentions, mlp),
        _norm(values),
        placement="sandwich",
        embedding_scale=values.count("hidden_size") ** 0.5,
        final_logit_soft_cap=optional_number(values, "final_logit_softcapping"),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
    )


def _scaled_attention(values: ConfigValues) -> AttentionConfig:
    bias = values.flag("attention_bias", False)
    return read_attention(
        values,
        rope=RopeParameters(values.positive("rope_theta", 10_000.0))
        if _has_nested_ropes(values)
        else read_rope(values),
        scale=values.positive("query_pre_attn_scalar", 256) ** -0.5,
        qkv_bias=bias,
        output_bias=bias,
    )


def _norm(values: ConfigValues) -> NormConfig:
    return read_rms_norm(values, weight_offset=1.0)


def _refuse_bidirectional(values: ConfigValues) -> None:
    refuse_flag(values, "use_bidirectional_attention", "quire attends causally")


def _has_nested_ropes(values: ConfigValues) -> bool:
    return bool({SLIDING, FULL} & values.mapping("rope_parameters").keys())


def _read_ropes(values: ConfigValues) -> tuple[RopeParameters, RopeParameters]:
    """Return the rotary embeddings of full-attention and of sliding-window layers."""
    if values.mapping("rope_parameters") and not _has_nested_ropes(values):
        raise UnsupportedModelError(
            f"{values.architecture}: rope_parameters must have an entry for {FULL} and one for "
            f"{SLIDING}"
        )
    whole = {"rope_theta": values.positive("rope_theta")}
    local = {"rope_theta": values.positive("rope_local_base_freq")}
    scaling = values.mapping("rope_scaling")  # of version 4: scales the full-attention layers only
    return _read_rope(values, FULL, whole, scaling), _read_rope(values, SLIDING, local, {})


def _read_rope(
    values: ConfigValues, kind: str, older: Mapping[str, Any], scaling: Mapping[str, Any]
) -> RopeParameters:
    config = {
        **older,
        "rope_scaling": scaling,
        "rope_parameters": values.nested("rope_parameters").mapping(kind),
        "max_position_embeddings": values.count("max_position_embeddings"),
    }
    return read_rope(ConfigValues(config, values.architecture))
