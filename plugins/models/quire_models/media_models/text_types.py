"""Text models inside of models with media towers, by `model_type` of their `text_config`.

A nested config leaves out values that are the defaults of its class in transformers, sizes too. The
defaults here are those that the family of the text model has not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextType:
    """A text model.

    Attributes:
        family: Architecture whose row in the table of families has its reader, and whose values
            are taken for keys that its config lacks.
        defaults: Values for such keys that differ from those of the family, or that it has not.
        reader: Import string of a reader of its own, below `quire_models.readers`; None: that of
            the family.
        has_three_positions: Whether a token has three positions, one of time and two in an image
            (mrope). Those of text are equal, so its rotary embedding is the plain one.
    """

    family: str
    defaults: Mapping[str, Any]
    reader: str | None = None
    has_three_positions: bool = False


def _sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, positions: int
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
    }


LLAMA = _sizes(32_000, 4096, 11_008, 32, 32, 32, 2048)
MISTRAL = _sizes(32_000, 4096, 14_336, 32, 32, 8, 131_072)
QWEN2 = _sizes(151_936, 4096, 22_016, 32, 32, 32, 32_768)
COHERE = _sizes(256_000, 8192, 22_528, 40, 64, 64, 8192)
GEMMA2 = _sizes(256_000, 2304, 9216, 26, 8, 4, 8192)
QWEN2_VL = {
    **_sizes(152_064, 8192, 29_568, 80, 64, 8, 32_768),
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "max_window_layers": 80,
}

TEXT_TYPES: Mapping[str, TextType] = {
    "llama": TextType("LlamaForCausalLM", LLAMA),
    "granite": TextType("GraniteForCausalLM", LLAMA),
    "hyperclovax": TextType("HyperCLOVAXForCausalLM", LLAMA),
    "mistral": TextType("MistralForCausalLM", MISTRAL),
    "ministral3": TextType(
        "Ministral3ForCausalLM", _sizes(131_072, 4096, 14_336, 34, 32, 8, 262_144)
    ),
    "qwen2": TextType("Qwen2ForCausalLM", QWEN2),
    "qwen3": TextType("Qwen3ForCausalLM", QWEN2),
    "qwen3_moe": TextType(
        "Qwen3MoeForCausalLM",
        {**_sizes(151_936, 2048, 6144, 24, 32, 4, 32_768), "moe_intermediate_size": 768},
    ),
    "qwen2_vl_text": TextType("Qwen2ForCausalLM", QWEN2_VL, has_three_positions=True),
    "qwen2_5_vl_text": TextType("Qwen2ForCausalLM", QWEN2_VL, has_three_positions=True),
    "qwen3_vl_text": TextType(
        "Qwen3ForCausalLM",
        {**QWEN2, "max_position_embeddings": 128_000, "rope_theta": 500_000.0},
        has_three_positions=True,
    ),
    "qwen3_vl_moe_text": TextType(
        "Qwen3MoeForCausalLM",
        {
            **_sizes(151_936, 2048, 5632, 24, 16, 16, 128_000),
            "moe_intermediate_size": 1408,
            "num_local_experts": 60,
            "num_experts_per_tok": 4,
            "rope_theta": 500_000.0,
        },
        reader="qwen_moe:read_qwen3_vl_moe",
        has_three_positions=True,
    ),
    "glm4v_text": TextType(
        "Glm4ForCausalLM",
        {**_sizes(151_552, 4096, 13_696, 40, 32, 2, 32_768), "head_dim": None},
        reader="glm:read_glm4v",
        has_three_positions=True,
    ),
    "glm4v_moe_text": TextType(
        "Glm4MoeForCausalLM",
        {
            **_sizes(151_424, 4096, 10_944, 46, 96, 8, 65_536),
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "attention_bias": True,
        },
        has_three_positions=True,
    ),
    "gemma2": TextType(
        "Gemma2ForCausalLM",
        GEMMA2,
    ),
    "gemma3_text": TextType(
        "Gemma3ForCausalLM", {**GEMMA2, "vocab_size": 262_208, "max_position_embeddings": 131_072}
    ),
    "gemma4_text": TextType("Gemma4ForCausalLM", _sizes(262_144, 2304, 9216, 30, 8, 4, 131_072)),
    "llama4_text": TextType(
        "Llama4ForCausalLM",
        _sizes(202_048, 5120, 8192, 48, 40, 8, 131_072),
    ),
    "cohere": TextType("CohereForCausalLM", COHERE),
    "cohere2": TextType("Cohere2ForCausalLM", COHERE),
    "exaone4": TextType(
        "Exaone4ForCausalLM",
        _sizes(102_400, 4096, 16_384, 32, 32, 32, 2048),
    ),
}
