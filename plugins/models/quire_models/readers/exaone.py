"""EXAONE 4 (LG AI Research, 2025): norms of outputs, and no rotary embedding in full layers."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    optional_count,
    read_attention,
    read_decoder,
    read_layer_types,
    read_mlp,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig


def read_exaone4(values: ConfigValues) -> DecoderConfig:
    """Return the options of EXAONE 4; models without windows rotate in all layers."""
    norm = read_rms_norm(values, 1e-5)
    rotated = read_attention(values, qk_norm=QKNormConfig(norm=norm))
    window = optional_count(values, "sliding_window")
    attentions = {FULL: rotated if window is None else replace(rotated, rope=None)}
    if window is not None:
        attentions[SLIDING] = replace(rotated, window=window)
    kinds = _layer_types(values, window is not None)
    layers = layers_by_type(kinds, attentions, read_mlp(values))
    return read_decoder(values, layers, norm, placement="post")


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
