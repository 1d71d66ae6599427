"""Config of Gemma 3: layers with a sliding window, and a rotary embedding for each layer type.

transformers 5 writes `layer_types` and `rope_parameters` for each of them; version 4 wrote
`sliding_window_pattern`, `rope_theta`, `rope_local_base_freq` and `rope_scaling`. Both are
supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import UnsupportedModelError
from quire.interfaces.model import ModelDescription
from quire.layers.attention.rope_parameters import RopeParameters, read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder_config import (
    DecoderConfig,
    describe_decoder,
    read_sizes,
    require_activation,
)

ARCHITECTURE = "Gemma3ForCausalLM"
SLIDING, FULL = "sliding_attention", "full_attention"
# Defaults of transformers; the checkpoints of 2025 omit some of these values.
DEFAULTS: Mapping[str, Any] = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "tie_word_embeddings": True,
}


def describe_gemma3(config: Mapping[str, Any]) -> ModelDescription:
    """Return the model description that the engine plans with.

    Raises:
        UnsupportedModelError: The config has a value that quire does not support.
    """
    return describe_decoder(ARCHITECTURE, config, read_gemma3(config))


def read_gemma3(config: Mapping[str, Any]) -> DecoderConfig:
    """Return the decoder config; raises as `describe_gemma3` does."""
    values = ConfigValues({**DEFAULTS, **_without_nulls(config)}, ARCHITECTURE)
    _refuse_unsupported(values)
    sizes = read_sizes(values)
    whole, local = _read_ropes(values)
    attention_bias = values.flag("attention_bias", False)
    return DecoderConfig(
        **sizes,
        rope=whole,
        local_rope=local,
        windows=_read_windows(values, sizes["num_layers"]),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        has_qk_norm=True,
        has_sandwich_norms=True,
        norm_weight_offset=1.0,
        activation="gelu_tanh",
        embedding_scale=sizes["hidden_size"] ** 0.5,
        query_scale=values.positive("query_pre_attn_scalar") ** -0.5,
        final_logit_soft_cap=_optional(values, "final_logit_softcapping"),
    )


def _without_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drop null values, which mean the default, except for the sliding window."""
    return {k: value for k, value in config.items() if value is not None or k == "sliding_window"}


def _refuse_unsupported(values: ConfigValues) -> None:
    """Refuse options that would change the output and are not supported."""
    require_activation(values, "hidden_activation", "gelu_pytorch_tanh")
    if values.flag("use_bidirectional_attention", False):
        raise UnsupportedModelError(
            f"{ARCHITECTURE}: use_bidirectional_attention is not supported; quire attends causally"
        )
    if _optional(values, "attn_logit_softcapping") is not None:
        raise UnsupportedModelError(
            f"{ARCHITECTURE}: attn_logit_softcapping is not supported; Gemma 3 is trained "
            "without it"
        )


def _read_windows(values: ConfigValues, num_layers: int) -> tuple[int | None, ...]:
    kinds = _layer_types(values, num_layers)
    window = values.count("sliding_window") if SLIDING in kinds else None
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _layer_types(values: ConfigValues, num_layers: int) -> tuple[str, ...]:
    kinds = values.names("layer_types")
    if not kinds:
        pattern = values.count("sliding_window_pattern")
        return tuple(SLIDING if i % pattern else FULL for i in range(1, num_layers + 1))
    unknown = set(kinds) - {SLIDING, FULL}
    if unknown:
        raise UnsupportedModelError(
            f"{ARCHITECTURE}: layer_types {', '.join(sorted(unknown))} are not supported; "
            f"supported are {SLIDING} and {FULL}"
        )
    if len(kinds) != num_layers:
        raise UnsupportedModelError(
            f"{ARCHITECTURE}: layer_types has {len(kinds)} entries for num_hidden_layers "
            f"({num_layers})"
        )
    return kinds


def _read_ropes(values: ConfigValues) -> tuple[RopeParameters, RopeParameters]:
    """Return the rotary embeddings of full-attention and of sliding-window layers."""
    nested = values.mapping("rope_parameters")
    if nested and not {SLIDING, FULL} & nested.keys():
        raise UnsupportedModelError(
            f"{ARCHITECTURE}: rope_parameters must have an entry for {FULL} and one for {SLIDING}"
        )
    whole = {"rope_theta": values.positive("rope_theta")}
    local = {"rope_theta": values.positive("rope_local_base_freq")}
    scaling = values.mapping("rope_scaling")  # of version 4: scales the full-attention layers only
    return _read_rope(values, FULL, whole, scaling), _read_rope(values, SLIDING, local, {})


def _read_rope(
    values: ConfigValues, kind: str, older: Mapping[str, Any], scaling: Mapping[str, Any]
) -> RopeParameters:
    nested = ConfigValues(values.mapping("rope_parameters"), ARCHITECTURE, "rope_parameters.")
    config = {
        **older,
        "rope_scaling": scaling,
        "rope_parameters": nested.mapping(kind),
        "max_position_embeddings": values.count("max_position_embeddings"),
    }
    return read_rope(ConfigValues(config, ARCHITECTURE))


def _optional(values: ConfigValues, key: str) -> float | None:
    return None if values.config.get(key) is None else values.positive(key)
