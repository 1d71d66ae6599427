"""BLOOM (2022) and MPT (2023): linear biases by distance instead of a rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import UnsupportedModelError
from quire.interfaces.weight_rules import WeightRule
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.decoder.options.config_reading import (
    optional_number,
    read_decoder,
    read_equal_heads,
    read_layer_norm,
    refuse_flag,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.decoder.options.fused_names import LAYER, QKV, renamed
from quire_models.decoder.options.mlp_config import MLPConfig

GELU = "gelu_pytorch_tanh"
BLOOM_KEYS = {
    "hidden_size": "n_embed",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
BLOOM_POSITIONS = 2048  # of the training; the biases have no limit
BLOOM_BLOCK = "transformer.h.{layer}"
BLOOM_NAMES = {
    "transformer.word_embeddings": "model.embed_tokens",
    "transformer.word_embeddings_layernorm": "model.embedding_norm",
    "transformer.ln_f": "model.norm",
    f"{BLOOM_BLOCK}.input_layernorm": f"{LAYER}.input_layernorm",
    f"{BLOOM_BLOCK}.post_attention_layernorm": f"{LAYER}.post_attention_layernorm",
    f"{BLOOM_BLOCK}.self_attention.dense": f"{LAYER}.self_attn.o_proj",
    f"{BLOOM_BLOCK}.mlp.dense_h_to_4h": f"{LAYER}.mlp.up_proj",
    f"{BLOOM_BLOCK}.mlp.dense_4h_to_h": f"{LAYER}.mlp.down_proj",
}
MPT_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "expansion_ratio": "expansion_ratio",
}
MPT_BLOCK = "transformer.blocks.{layer}"
MPT_NAMES = {
    "transformer.wte": "model.embed_tokens",
    "transformer.norm_f": "model.norm",
    f"{MPT_BLOCK}.norm_1": f"{LAYER}.input_layernorm",
    f"{MPT_BLOCK}.norm_2": f"{LAYER}.post_attention_layernorm",
    f"{MPT_BLOCK}.attn.out_proj": f"{LAYER}.self_attn.o_proj",
    f"{MPT_BLOCK}.ffn.up_proj": f"{LAYER}.mlp.up_proj",
    f"{MPT_BLOCK}.ffn.down_proj": f"{LAYER}.mlp.down_proj",
}


def read_bloom(values: ConfigValues) -> DecoderConfig:
    """Return the options of BLOOM; version 4 of transformers wrote n_embed for the hidden size."""
    aliases = {key: name for key, name in BLOOM_KEYS.items() if not values.has(key)}
    values = replace(values, aliases=aliases)
    refuse_flag(
        values,
        "apply_residual_connection_post_layernorm",
        "no published model has residuals after the norm",
    )
    heads = read_equal_heads(values)
    attention = AttentionConfig(
        **heads.as_options,
        scale=heads.head_dim**-0.5,
        qkv_bias=True,
        output_bias=True,
        alibi_max_bias=8.0,
    )
    mlp = MLPConfig(
        width=4 * values.count("hidden_size"), activation=GELU, is_gated=False, has_bias=True
    )
    fused = WeightRule(f"{BLOOM_BLOCK}.self_attention.query_key_value", QKV, groups=heads.num_heads)
    prefixes = ("transformer.", "")
    rules = [
        replace(rule, checkpoint=prefix + rule.checkpoint.removeprefix("transformer."))
        for prefix in prefixes
        for rule in (fused, *renamed(BLOOM_NAMES))
    ]
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        read_layer_norm(values, "layer_norm_epsilon"),
        max_positions=values.count("seq_length", BLOOM_POSITIONS),
        has_embedding_norm=True,
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
        weight_rules=tuple(rules),
    )


def read_mpt(values: ConfigValues) -> DecoderConfig:
    """Return the options of MPT, without biases anywhere."""
    values = replace(values, aliases=MPT_KEYS)
    options = values.nested("attn_config")
    if not options.flag("alibi", True):
        raise UnsupportedModelError(
            f"{values.architecture}: attn_config.alibi is false; learned positions of MPT are not "
            "supported"
        )
    refuse_flag(options, "qk_ln", "no norm of queries and keys")
    refuse_flag(options, "prefix_lm", "quire attends causally")
    heads = read_equal_heads(values)
    attention = AttentionConfig(
        **heads.as_options,
        scale=optional_number(options, "softmax_scale") or heads.head_dim**-0.5,
        clip=optional_number(options, "clip_qkv"),
        alibi_max_bias=options.positive("alibi_bias_max", 8),
    )
    width = 4 * values.count("hidden_size")
    mlp = MLPConfig(width=width, activation="gelu", is_gated=False)
    fused = WeightRule(f"{MPT_BLOCK}.attn.Wqkv", QKV)
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        read_layer_norm(values, "layer_norm_epsilon", has_bias=False),
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
        weight_rules=(fused, *renamed(MPT_NAMES)),
    )
