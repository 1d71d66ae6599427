"""Llama (Touvron et al., 2023), and families that differ from it by few options.

Seed-OSS and InternLM 3 have further biases, InternLM 2 other names, CWM has sliding windows.
"""

from __future__ import annotations

from dataclasses import replace

from quire.interfaces.weight_rules import WeightRule
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    FULL,
    SLIDING,
    layers_by_type,
    read_attention,
    read_decoder,
    read_heads,
    read_layer_types,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import LAYER, QKV, renamed

INTERNLM2_NAMES = {
    "model.tok_embeddings": "model.embed_tokens",
    "output": "lm_head",
    f"{LAYER}.attention_norm": f"{LAYER}.input_layernorm",
    f"{LAYER}.ffn_norm": f"{LAYER}.post_attention_layernorm",
    f"{LAYER}.attention.wo": f"{LAYER}.self_attn.o_proj",
    f"{LAYER}.feed_forward.w1": f"{LAYER}.mlp.gate_proj",
    f"{LAYER}.feed_forward.w3": f"{LAYER}.mlp.up_proj",
    f"{LAYER}.feed_forward.w2": f"{LAYER}.mlp.down_proj",
}


def read_llama(values: ConfigValues) -> DecoderConfig:
    """Return the options of Llama: one flag for the biases of attention, one for the MLP's."""
    bias = values.flag("attention_bias", False)
    attention = read_attention(values, qkv_bias=bias, output_bias=bias)
    mlp = read_mlp(values, has_bias=values.flag("mlp_bias", False))
    return read_decoder(values, same_layers(values, attention, mlp), read_rms_norm(values))


def read_seed_oss(values: ConfigValues) -> DecoderConfig:
    """Return the options of Seed-OSS: the output projection of attention has a flag of its own."""
    attention = read_attention(
        values,
        qkv_bias=values.flag("attention_bias", True),
        output_bias=values.flag("attention_out_bias", False),
    )
    mlp = read_mlp(values, has_bias=values.flag("mlp_bias", False))
    return read_decoder(values, same_layers(values, attention, mlp), read_rms_norm(values))


def read_internlm3(values: ConfigValues) -> DecoderConfig:
    """Return the options of InternLM 3: `qkv_bias` for the inputs, `bias` for all else."""
    bias = values.flag("bias", values.flag("mlp_bias", False))
    attention = read_attention(
        values,
        qkv_bias=values.flag("qkv_bias", values.flag("attention_bias", False)),
        output_bias=values.flag("bias", values.flag("attention_bias", False)),
    )
    mlp = read_mlp(values, has_bias=bias)
    return read_decoder(values, same_layers(values, attention, mlp), read_rms_norm(values))


def read_internlm2(values: ConfigValues) -> DecoderConfig:
    """Return the options of InternLM 2: q, k and v are fused by key/value head."""
    heads, bias = read_heads(values), values.flag("bias", True)
    attention = read_attention(values, heads=heads, qkv_bias=bias, output_bias=bias)
    layers = same_layers(values, attention, read_mlp(values))
    fused = WeightRule(f"{LAYER}.attention.wqkv", QKV, groups=heads.num_kv_heads)
    rules = (fused, *renamed(INTERNLM2_NAMES))
    return read_decoder(values, layers, read_rms_norm(values), weight_rules=rules)


def read_cwm(values: ConfigValues) -> DecoderConfig:
    """Return the options of CWM: one layer in four has full attention, the others a window."""
    full = read_attention(values)
    sliding = replace(full, window=values.count("sliding_window", 8192))
    kinds = read_layer_types(values, lambda i: SLIDING if i % 4 else FULL)
    mlp = read_mlp(values, has_bias=values.flag("mlp_bias", False))
    layers = layers_by_type(kinds, {FULL: full, SLIDING: sliding}, mlp)
    return read_decoder(values, layers, read_rms_norm(values, 1e-5))
