"""MiniCPM 3 (OpenBMB, 2024): latent attention, and factors on embeddings, blocks and logits."""

from __future__ import annotations

from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.config_reading import (
    optional_count,
    optional_number,
    read_decoder,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.readers.deepseek import read_latent_attention


def read_minicpm3(values: ConfigValues) -> DecoderConfig:
    """Return the options of MiniCPM 3; a null factor changes nothing."""
    hidden, depth = values.count("hidden_size"), optional_number(values, "scale_depth")
    num_layers = values.count("num_hidden_layers")
    default = {"v_head_dim": hidden // values.count("num_attention_heads")}
    sizes = {} if values.has("v_head_dim") else default
    attention = read_latent_attention(values.with_values(sizes), is_interleaved=False)
    mlp = read_mlp(values, has_bias=values.flag("mlp_bias", False))
    return read_decoder(
        values,
        same_layers(values, attention, mlp),
        read_rms_norm(values, 1e-5),
        embedding_scale=values.positive("scale_emb"),
        residual_scale=1.0 if depth is None else depth / num_layers**0.5,
        logit_scale=(optional_count(values, "dim_model_base") or hidden) / hidden,
        tie_word_embeddings=values.flag("tie_word_embeddings", True),
    )
