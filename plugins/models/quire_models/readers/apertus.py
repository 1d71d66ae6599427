"""Apertus (Swiss AI, 2025): a plain MLP whose activation, xIELU, has learned coefficients."""

from __future__ import annotations

from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import QKNormConfig
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import LAYER, renamed, renamed_norms

RULES = (
    *renamed({f"{LAYER}.mlp.act_fn": f"{LAYER}.mlp.activation"}),
    *renamed_norms(
        {
            "attention_layernorm": "input_layernorm",
            "feedforward_layernorm": "post_attention_layernorm",
        }
    ),
)


def read_apertus(values: ConfigValues) -> DecoderConfig:
    """Return the options of Apertus."""
    norm, bias = read_rms_norm(values, 1e-5), values.flag("attention_bias", False)
    attention = read_attention(
        values, qkv_bias=bias, output_bias=bias, qk_norm=QKNormConfig(norm=norm)
    )
    mlp = read_mlp(values, default_activation="xielu", is_gated=False)
    return read_decoder(values, same_layers(values, attention, mlp), norm, weight_rules=RULES)
