"""GPT-NeoX and Pythia (EleutherAI, 2022): each head's query, key and value are adjacent rows."""

from __future__ import annotations

from dataclasses import replace

from quire.interfaces.weight_rules import WeightRule
from quire.layers.attention.rope_parameters import read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_equal_heads,
    read_layer_norm,
    read_mlp,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import LAYER, QKV, renamed

THEIRS = "gpt_neox.layers.{layer}"
NAMES = {
    "gpt_neox.embed_in": "model.embed_tokens",
    "gpt_neox.final_layer_norm": "model.norm",
    "embed_out": "lm_head",
    f"{THEIRS}.input_layernorm": f"{LAYER}.input_layernorm",
    f"{THEIRS}.post_attention_layernorm": f"{LAYER}.post_attention_layernorm",
    f"{THEIRS}.attention.dense": f"{LAYER}.self_attn.o_proj",
    f"{THEIRS}.mlp.dense_h_to_4h": f"{LAYER}.mlp.up_proj",
    f"{THEIRS}.mlp.dense_4h_to_h": f"{LAYER}.mlp.down_proj",
}
ROPE_KEYS = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
UNUSED = (
    r".*\.attention\.(bias|masked_bias)",
    r".*\.rotary_emb\.inv_freq",
)


def read_gpt_neox(values: ConfigValues) -> DecoderConfig:
    """Return the options of GPT-NeoX; version 4 of transformers wrote rotary_pct."""
    heads = read_equal_heads(values)
    bias = values.flag("attention_bias", True)
    attention = read_attention(
        values,
        heads=heads,
        rope=read_rope(
            replace(values, aliases=ROPE_KEYS), head_dim=heads.head_dim, partial_factor=0.25
        ),
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = read_mlp(values, default_activation="gelu", is_gated=False, has_bias=True)
    fused = WeightRule(f"{THEIRS}.attention.query_key_value", QKV, groups=heads.num_heads)
    is_parallel = values.flag("use_parallel_residual", True)
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        read_layer_norm(values),
        placement="parallel_two_norms" if is_parallel else "pre",
        weight_rules=(fused, *renamed(NAMES)),
        ignored_weights=UNUSED,
    )
