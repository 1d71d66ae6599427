"""Values for keys that a config.json lacks, as far as the readers have no default of their own.

A missing key means the default of the family's config class in transformers, which is often the
value of one published model; null means that there is none.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GRANITE_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
# Files may have num_experts instead of num_local_experts.
QWEN2_EXPERTS = {"num_local_experts": 60, "num_experts_per_tok": 4}
PHIMOE = {"num_local_experts": 16, "num_experts_per_tok": 2, "rope_theta": 1e6}
MISSING_VALUES: Mapping[str, Mapping[str, Any]] = {
    "SeedOssForCausalLM": {"num_key_value_heads": 8, "head_dim": 128},
    "CwmForCausalLM": {"num_key_value_heads": 8, "rope_theta": 1e6},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "MinistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Ministral3ForCausalLM": {"num_key_value_heads": 8, "head_dim": 128},
    "Qwen2ForCausalLM": {"num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"num_key_value_heads": 32},
    "GemmaForCausalLM": {"num_key_value_heads": 16},
    "Gemma2ForCausalLM": {
        "num_key_value_heads": 4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "SmolLM3ForCausalLM": {"rope_theta": 2e6},
    "StableLmForCausalLM": {"num_key_value_heads": 32},
    "MixtralForCausalLM": {
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
    },
    "Qwen2MoeForCausalLM": {"num_key_value_heads": 16, **QWEN2_EXPERTS},
    "Qwen3MoeForCausalLM": {
        "sliding_window": 4096,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
    },
    "GPTJForCausalLM": {"rotary_dim": 64},
    "GptOssForCausalLM": {
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "rope_theta": 150_000.0,
    },
    "Phi3ForCausalLM": {"original_max_position_embeddings": 4096},
    "Ernie4_5ForCausalLM": {"num_key_value_heads": 2, "head_dim": 128},
    "Glm4MoeForCausalLM": {
        "num_key_value_heads": 8,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
    },
    "DeepseekV3ForCausalLM": {
        "q_lora_rank": 1536,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
    },
    "DeepseekV2ForCausalLM": {"n_shared_experts": 2, "q_lora_rank": 1536},
    "PhimoeForCausalLM": PHIMOE,
    "PhiMoEForCausalLM": PHIMOE,
    "Ernie4_5_MoeForCausalLM": {"moe_num_shared_experts": 2, "moe_num_experts": 64, "moe_k": 6},
    "GraniteMoeForCausalLM": GRANITE_EXPERTS,
    "GraniteMoeSharedForCausalLM": GRANITE_EXPERTS,
    "HunYuanMoEV1ForCausalLM": {"num_experts": 1, "moe_topk": 1},
    "GraniteSWAForCausalLM": {
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    "HyperCLOVAXForCausalLM": {"use_post_norm": True},
    "Exaone4ForCausalLM": {"num_key_value_heads": 32, "sliding_window": 4096},
    "ApertusForCausalLM": {"rope_theta": 12e6},
    "Olmo3ForCausalLM": {"rope_theta": 500_000.0},
    "OlmoeForCausalLM": {"num_experts": 64, "num_experts_per_tok": 8},
    "FlexOlmoForCausalLM": {"num_experts": 7, "num_experts_per_tok": 5, "rope_theta": 500_000.0},
    "MiniMaxM2ForCausalLM": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "rope_theta": 5e6,
    },
    "Llama4ForCausalLM": {
        "num_key_value_heads": 8,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
    },
    "HeliumForCausalLM": {"num_key_value_heads": 20},
}
# For files without a rotary embedding under any key, or with null.
ROPES: Mapping[str, Mapping[str, Any]] = {
    "CwmForCausalLM": {**LLAMA3, "rope_theta": 1e6, "factor": 16.0},
    "ApertusForCausalLM": {**LLAMA3, "rope_theta": 12e6, "factor": 8.0},
    "GptOssForCausalLM": {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "Ministral3ForCausalLM": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}


def with_missing_values(architecture: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json with the values of the keys that it lacks."""
    layers: list[Any] = [config, MISSING_VALUES.get(architecture, {})]
    if architecture in ROPES and not (config.get("rope_parameters") or config.get("rope_scaling")):
        layers.insert(0, {"rope_parameters": ROPES[architecture]})
    return ChainMap(*layers)
