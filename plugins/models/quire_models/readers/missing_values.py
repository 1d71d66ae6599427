"""Values for keys that a config.json lacks: sizes of heads, bases of rotary embeddings, and more.

A missing key means the default of the family's config class in transformers, which is often the
value of one published model; null means that there is none, except for bases. Readers have the
defaults of flags, epsilons and factors, where families that share a reader agree.
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
GLM = {"num_key_value_heads": 2, "head_dim": 128}
PHIMOE = {
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "rope_theta": 1e6,
}
BASES = ("rope_theta", "rope_local_base_freq")  # of rotary embeddings
MISSING_VALUES: Mapping[str, Mapping[str, Any]] = {
    "SeedOssForCausalLM": {"num_key_value_heads": 8, "head_dim": 128},
    "CwmForCausalLM": {"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e6},
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "MinistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Ministral3ForCausalLM": {"num_key_value_heads": 8, "head_dim": 128},
    "Qwen2ForCausalLM": {"num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"num_key_value_heads": 32, "head_dim": 128},
    "GemmaForCausalLM": {"num_key_value_heads": 16, "head_dim": 256},
    "Gemma2ForCausalLM": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "VaultGemmaForCausalLM": {
        "num_key_value_heads": 4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "Gemma3ForCausalLM": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0,
    },
    "Gemma4ForCausalLM": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "max_position_embeddings": 131_072,
        "sliding_window": 512,
    },
    "GlmForCausalLM": GLM,
    "Glm4ForCausalLM": GLM,
    "SmolLM3ForCausalLM": {"num_key_value_heads": 4, "rope_theta": 2e6},
    "CohereForCausalLM": {"rope_theta": 500_000.0},
    "Starcoder2ForCausalLM": {"num_key_value_heads": 2},
    "StableLmForCausalLM": {"num_key_value_heads": 32},
    "MixtralForCausalLM": {
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
    },
    "Qwen2MoeForCausalLM": {"num_key_value_heads": 16, **QWEN2_EXPERTS},
    "Qwen3MoeForCausalLM": {
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
    },
    "MellumForCausalLM": {
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": 1024,
        "num_local_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 896,
        "norm_topk_prob": True,
    },
    "GPTJForCausalLM": {"rotary_dim": 64},
    "GptOssForCausalLM": {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "rope_theta": 150_000.0,
    },
    "Phi3ForCausalLM": {"original_max_position_embeddings": 4096},
    "Ernie4_5ForCausalLM": {"num_key_value_heads": 2, "head_dim": 128, "rope_theta": 500_000.0},
    "Glm4MoeForCausalLM": {
        "num_key_value_heads": 8,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
    },
    "Dots1ForCausalLM": {
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
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
    "Glm4MoeLiteForCausalLM": {
        "q_lora_rank": 768,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "routed_scaling_factor": 1.8,
    },
    "MiniCPM3ForCausalLM": {
        "q_lora_rank": 768,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    },
    "DeepseekV2ForCausalLM": {"n_shared_experts": 2, "q_lora_rank": 1536},
    "PhimoeForCausalLM": PHIMOE,
    "PhiMoEForCausalLM": PHIMOE,
    "Ernie4_5_MoeForCausalLM": {
        "num_key_value_heads": 4,
        "rope_theta": 500_000.0,
        "moe_num_shared_experts": 2,
        "moe_num_experts": 64,
        "moe_k": 6,
    },
    "GraniteMoeForCausalLM": GRANITE_EXPERTS,
    "GraniteMoeSharedForCausalLM": GRANITE_EXPERTS,
    "GraniteMoeSWAForCausalLM": GRANITE_EXPERTS,
    "HYV3ForCausalLM": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
        "rope_theta": 11_158_840.0,
    },
    "HunYuanMoEV1ForCausalLM": {"num_experts": 1, "moe_topk": 1},
    "GraniteSWAForCausalLM": {
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    "HyperCLOVAXForCausalLM": {"use_post_norm": True},
    "Exaone4ForCausalLM": {"num_key_value_heads": 32, "sliding_window": 4096},
    "ExaoneMoeForCausalLM": {
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "routed_scaling_factor": 2.5,
    },
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
        "head_dim": 128,
        "rope_theta": 500_000.0,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
    },
    "HeliumForCausalLM": {"num_key_value_heads": 20, "head_dim": 128, "rope_theta": 100_000.0},
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
    "MellumForCausalLM": {
        "full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
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
    defaults = MISSING_VALUES.get(architecture, {})
    bases = {key: defaults[key] for key in BASES if key in defaults and config.get(key) is None}
    layers: list[Any] = [bases, config, defaults]
    if architecture in ROPES and not (config.get("rope_parameters") or config.get("rope_scaling")):
        layers.insert(0, {"rope_parameters": ROPES[architecture]})
    return ChainMap(*layers)
