"""StarCoder 2 (2024): LayerNorm, a plain MLP and a window."""

from __future__ import annotations

from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    optional_count,
    read_attention,
    read_decoder,
    read_layer_norm,
    read_mlp,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import LAYER, renamed

NAMES = {
    f"{LAYER}.mlp.c_fc": f"{LAYER}.mlp.up_proj",
    f"{LAYER}.mlp.c_proj": f"{LAYER}.mlp.down_proj",
}


def read_starcoder2(values: ConfigValues) -> DecoderConfig:
    """Return the options of StarCoder 2; one flag is for all biases."""
    bias = values.flag("use_bias", True)
    attention = read_attention(
        values,
        qkv_bias=bias,
        output_bias=bias,
        window=optional_count(values, "sliding_window"),
    )
    mlp = read_mlp(values, default_activation="gelu_pytorch_tanh", is_gated=False, has_bias=bias)
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        read_layer_norm(values, "norm_epsilon"),
        weight_rules=renamed(NAMES),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
    )
