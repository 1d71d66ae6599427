"""StableLM 2 (Stability AI, 2024): LayerNorm, and a rotary embedding over a quarter of a head."""

from __future__ import annotations

from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import QKNormConfig
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_heads,
    read_layer_norm,
    read_mlp,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import LAYER, renamed

NORMS = {
    f"{LAYER}.self_attn.{part}_layernorm.norms.{{head}}": f"{LAYER}.self_attn.{part}_norm.{{head}}"
    for part in "qk"
}


def read_stablelm(values: ConfigValues) -> DecoderConfig:
    """Return the options of StableLM; its larger models run attention and MLP side by side."""
    heads = read_heads(values)
    attention = read_attention(
        values,
        heads=heads,
        rope=read_rope(values, head_dim=heads.head_dim, partial_factor=0.25),
        qkv_bias=values.flag("use_qkv_bias", False),
        qk_norm=QKNormConfig(norm=read_layer_norm(values, has_bias=False), over="listed")
        if values.flag("qk_layernorm", False)
        else None,
    )
    is_parallel = values.flag("use_parallel_residual", False)
    return read_decoder(
        values,
        same_layers(values, attention, read_mlp(values)),
        read_layer_norm(values),
        placement="parallel" if is_parallel else "pre",
        weight_rules=renamed(NORMS),
    )
