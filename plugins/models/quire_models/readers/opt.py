"""OPT (Zhang et al., 2022): learned positions; the 350m model has its norms after each sum."""

from __future__ import annotations

from dataclasses import replace

from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.decoder.options.config_reading import (
    read_decoder,
    read_equal_heads,
    read_layer_norm,
    read_mlp,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig, PositionTable
from quire_models.decoder.options.fused_names import LAYER, renamed

THEIRS = "model.decoder.layers.{layer}"
NAMES = {
    "model.decoder.embed_tokens": "model.embed_tokens",
    "model.decoder.embed_positions": "model.embed_positions",
    "model.decoder.project_in": "model.project_in",
    "model.decoder.project_out": "model.project_out",
    "model.decoder.final_layer_norm": "model.norm",
    f"{THEIRS}.self_attn_layer_norm": f"{LAYER}.input_layernorm",
    f"{THEIRS}.final_layer_norm": f"{LAYER}.post_attention_layernorm",
    **{f"{THEIRS}.self_attn.{part}_proj": f"{LAYER}.self_attn.{part}_proj" for part in "qkv"},
    f"{THEIRS}.self_attn.out_proj": f"{LAYER}.self_attn.o_proj",
    f"{THEIRS}.fc1": f"{LAYER}.mlp.up_proj",
    f"{THEIRS}.fc2": f"{LAYER}.mlp.down_proj",
}
UNUSED_ROWS = 2  # of the table of positions


def read_opt(values: ConfigValues) -> DecoderConfig:
    """Return the options of OPT; files of 2022 lack the keys of its flags."""
    heads, bias = read_equal_heads(values), values.flag("enable_bias", True)
    attention = AttentionConfig(
        **heads.as_options, scale=heads.head_dim**-0.5, qkv_bias=bias, output_bias=bias
    )
    mlp = read_mlp(
        values,
        width="ffn_dim",
        activation="activation_function",
        default_activation="relu",
        is_gated=False,
        has_bias=bias,
    )
    is_before = values.flag("do_layer_norm_before", True)
    has_affine = values.flag("layer_norm_elementwise_affine", True)
    norm = replace(read_layer_norm(values), has_weight=has_affine, has_bias=has_affine)
    size = values.count("word_embed_proj_dim", values.count("hidden_size"))
    rules = renamed({theirs.replace("model.decoder", "decoder"): o for theirs, o in NAMES.items()})
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        norm,
        placement="pre" if is_before else "post_sum",
        has_final_norm=is_before and not values.flag("_remove_final_layer_norm", False),
        positions=PositionTable(
            num_positions=values.count("max_position_embeddings"), num_unused=UNUSED_ROWS
        ),
        embedding_size=None if size == values.count("hidden_size") else size,
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
        weight_rules=(*renamed(NAMES), *rules),
    )
