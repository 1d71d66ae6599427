"""dots.llm1 (rednote, 2025): norms of queries and keys, and experts as DeepSeek-V3 has them."""

from __future__ import annotations

from dataclasses import replace

from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import QKNormConfig
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    optional_count,
    read_attention,
    read_layer_types,
    read_rms_norm,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.sigmoid_moe import read_sigmoid_moe


def read_dots1(values: ConfigValues) -> DecoderConfig:
    """Return the options of dots.llm1; later layers may have a sliding window."""
    bias = values.flag("attention_bias", False)
    full = read_attention(
        values, qkv_bias=bias, output_bias=bias, qk_norm=QKNormConfig(norm=read_rms_norm(values))
    )
    window, first = optional_count(values, "sliding_window"), values.whole("max_window_layers", 62)
    kinds = read_layer_types(values, lambda i: SLIDING if window and i >= first else FULL)
    attentions = [full] * len(kinds)
    if SLIDING in kinds:
        sliding = replace(full, window=values.count("sliding_window"))
        attentions = [sliding if kind == SLIDING else full for kind in kinds]
    return read_sigmoid_moe(values, attentions, 1e-6)
