"""EXAONE 4 and K-EXAONE (LG AI Research, 2025): no rotary embedding in full layers beside windows.

EXAONE 4 has norms of outputs, K-EXAONE norms of inputs and experts.
"""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.interfaces.weight_rules import WeightRule
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    optional_count,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig
from quire_models.decoder.options.fused_names import LAYER
from quire_models.decoder.options.sigmoid_moe import read_sigmoid_moe

EXPERTS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
CHOICE_BIAS = WeightRule(
    f"{LAYER}.mlp.e_score_correction_bias", (f"{LAYER}.mlp.gate.e_score_correction_bias",)
)


def read_exaone4(values: ConfigValues) -> DecoderConfig:
    """Return the options of EXAONE 4."""
    mlp = read_mlp(values)
    layers = [LayerConfig(attention=each, mlp=mlp) for each in _read_attentions(values)]
    return read_decoder(values, layers, read_rms_norm(values, 1e-5), placement="post")


def read_exaone_moe(values: ConfigValues) -> DecoderConfig:
    """Return the options of K-EXAONE, whose experts are as DeepSeek-V3 has them."""
    decoder = read_sigmoid_moe(replace(values, aliases=EXPERTS), _read_attentions(values))
    return replace(decoder, weight_rules=(*decoder.weight_rules, CHOICE_BIAS))


def _read_attentions(values: ConfigValues) -> list[AttentionConfig]:
    """Return the attention of each layer; models without windows rotate in all layers."""
    rotated = read_attention(values, qk_norm=QKNormConfig(norm=read_rms_norm(values, 1e-5)))
    window = optional_count(values, "sliding_window")
    attentions = {FULL: rotated if window is None else replace(rotated, rope=None)}
    if window is not None:
        attentions[SLIDING] = replace(rotated, window=window)
    return [attentions[kind] for kind in _layer_types(values, window is not None)]


def _layer_types(values: ConfigValues, has_windows: bool) -> tuple[str, ...]:
    is_full = _pattern(values)
    kinds = read_layer_types(
        values, lambda i: SLIDING if has_windows and not is_full[i % len(is_full)] else FULL
    )
    if SLIDING in kinds and not has_windows:
        raise UnsupportedModelError(
            f"{values.architecture}: layer_types has {SLIDING}, but sliding_window is not set"
        )
    return kinds


def _pattern(values: ConfigValues) -> list[bool]:
    """Return which layers of the pattern that layers repeat have full attention."""
    pattern = values.config.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        period = values.whole("sliding_window_pattern", 4) or 4  # 0 without windows
        return [layer + 1 == period for layer in range(period)]
    if not pattern or set(pattern) - {"L", "G"}:
        raise UnsupportedModelError(
            f"{values.architecture}: sliding_window_pattern in config.json must be a number, or a "
            f"letter for each layer (L local, G global), got {pattern!r}"
        )
    return [letter == "G" for letter in pattern]
