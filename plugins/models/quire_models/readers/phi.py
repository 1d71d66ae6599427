"""Phi (Microsoft): Phi-1 to 2 run attention and MLP side by side, Phi-3 to 4 are like Llama.

The latter have fused projections, LongRoPE, and some a window.
"""

from __future__ import annotations

from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    optional_count,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_norm,
    read_mlp,
    read_rms_norm,
    refuse_flag,
    same_layers,
    with_renamed_rope,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import FUSED_GATE_UP, FUSED_QKV, LAYER, renamed

NAMES = {
    f"{LAYER}.self_attn.dense": f"{LAYER}.self_attn.o_proj",
    f"{LAYER}.mlp.fc1": f"{LAYER}.mlp.up_proj",
    f"{LAYER}.mlp.fc2": f"{LAYER}.mlp.down_proj",
    "model.final_layernorm": "model.norm",
}


def read_phi(values: ConfigValues) -> DecoderConfig:
    """Return the options of Phi-1, 1.5 and 2: everything has a bias."""
    refuse_flag(values, "qk_layernorm", "no published model has it")
    heads = read_heads(values)
    attention = read_attention(
        values,
        heads=heads,
        rope=read_rope(values, head_dim=heads.head_dim, partial_factor=0.5),
        qkv_bias=True,
        output_bias=True,
    )
    mlp = read_mlp(values, default_activation="gelu_new", is_gated=False, has_bias=True)
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        read_layer_norm(values),
        placement="parallel",
        head_bias=True,
        weight_rules=renamed(NAMES),
    )


def read_phi3(values: ConfigValues) -> DecoderConfig:
    """Return the options of Phi-3, Phi-3.5, Phi-4 and Phi-4-mini."""
    values = with_renamed_rope(values, "yarn", "longrope")  # its name in old files
    attention = read_attention(values, window=optional_count(values, "sliding_window"))
    return read_decoder(
        values,
        same_layers(values, attention, read_mlp(values)),
        read_rms_norm(values, 1e-5),
        weight_rules=(FUSED_QKV, FUSED_GATE_UP),
    )
