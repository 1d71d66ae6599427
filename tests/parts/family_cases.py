"""Shapes of each family for tests: every option that its config has, in some combination."""

from family_checkpoints import MISSING, FamilyCase

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16,
}


def longrope(num_pairs: int) -> dict:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 10 for i in range(num_pairs)],
        "long_factor": [2.0 + i / 3 for i in range(num_pairs)],
        "original_max_position_embeddings": 16,
    }


def partial(factor: float, theta: float = 10000.0) -> dict:
    return {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": factor}


GPT = {
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 256,
    "hidden_size": MISSING,
    "intermediate_size": MISSING,
    "num_hidden_layers": MISSING,
    "num_attention_heads": MISSING,
    "num_key_value_heads": MISSING,
    "max_position_embeddings": MISSING,
}
NO_SIZES = dict.fromkeys(
    (
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    ),
    MISSING,
)
BLOOM = NO_SIZES | {"n_layer": 4}
MPT = NO_SIZES | {"n_layers": 4, "d_model": 64, "max_seq_len": 256, "hidden_size": MISSING}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
SIGMOID_EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
LATENT = {
    "q_lora_rank": 28,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 14,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = [SLIDING, FULL, FULL, SLIDING]

# As E2B and E4B: two layers of each type use keys and values of earlier ones.
GEMMA4_SMALL = {
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 320,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 9,
    "num_hidden_layers": 8,
    "num_kv_shared_layers": 4,
    "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 4.0,
}

CASES: dict[str, dict[str, FamilyCase]] = {
    "LlamaForCausalLM": {
        "llama3": FamilyCase(
            "llama",
            {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "head_dim": 24},
        ),
        "linear": FamilyCase(
            "llama",
            {
                "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
                "tie_word_embeddings": True,
            },
        ),
        "yarn": FamilyCase(
            "llama",
            {"rope_parameters": {**YARN, "beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 0.4}},
        ),
    },
    "SeedOssForCausalLM": {
        "biases": FamilyCase("seed_oss", {"head_dim": 24}),
        "other biases": FamilyCase(
            "seed_oss",
            {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True, "head_dim": 16},
        ),
    },
    "CwmForCausalLM": {
        "types": FamilyCase(
            "cwm", {"head_dim": 24, "sliding_window": 9, "rope_parameters": LLAMA3}
        ),
        "other types": FamilyCase(
            "cwm", {"head_dim": 16, "sliding_window": 16, "layer_types": MIXED}
        ),
    },
    "MistralForCausalLM": {
        "window": FamilyCase("mistral", {"sliding_window": 13, "head_dim": 24}),
        "no window": FamilyCase("mistral", {"sliding_window": None, "head_dim": 16}),
        "yarn": FamilyCase("mistral", {"sliding_window": None, "rope_parameters": YARN}),
    },
    "MinistralForCausalLM": {
        "types": FamilyCase(
            "ministral", {"sliding_window": 11, "layer_types": MIXED, "head_dim": 16}
        ),
        "window": FamilyCase("ministral", {"sliding_window": 16, "head_dim": 24}),
    },
    "Ministral3ForCausalLM": {
        "yarn": FamilyCase(
            "ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}}
        ),
    },
    "Qwen2ForCausalLM": {
        "window": FamilyCase(
            "qwen2", {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 2}
        ),
        "window of no layer": FamilyCase(
            "qwen2", {"use_sliding_window": True, "sliding_window": 10, "max_window_layers": 4}
        ),
        "yarn": FamilyCase("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    },
    "Qwen3ForCausalLM": {
        "window": FamilyCase(
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 7,
                "max_window_layers": 1,
                "head_dim": 24,
            },
        ),
    },
    "GemmaForCausalLM": {
        "biases": FamilyCase("gemma", {"head_dim": 24, "attention_bias": True}),
        "untied": FamilyCase("gemma", {"head_dim": 16, "tie_word_embeddings": False}),
    },
    "Gemma2ForCausalLM": {
        "caps": FamilyCase(
            "gemma2",
            {
                "head_dim": 24,
                "sliding_window": 9,
                "query_pre_attn_scalar": 20,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 4.0,
            },
        ),
        "no caps": FamilyCase(
            "gemma2",
            {
                "head_dim": 16,
                "sliding_window": 16,
                "layer_types": MIXED,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
            },
        ),
    },
    "Gemma3ForCausalLM": {
        "types": FamilyCase(
            "gemma3_text",
            {
                "head_dim": 24,
                "sliding_window": 9,
                "layer_types": MIXED,
                "query_pre_attn_scalar": 20,
                "rope_parameters": {
                    FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                    SLIDING: {"rope_type": "default", "rope_theta": 300.0},
                },
            },
        ),
        "cap": FamilyCase(
            "gemma3_text",
            {
                "head_dim": 16,
                "sliding_window": 16,
                "attention_bias": True,
                "tie_word_embeddings": False,
                "final_logit_softcapping": 4.0,
            },
        ),
    },
    "VaultGemmaForCausalLM": {
        "caps": FamilyCase(
            "vaultgemma",
            {
                "head_dim": 24,
                "sliding_window": 9,
                "query_pre_attn_scalar": 20,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 4.0,
            },
        ),
        "no caps": FamilyCase(
            "vaultgemma",
            {
                "head_dim": 16,
                "sliding_window": 16,
                "layer_types": MIXED,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
            },
        ),
    },
    "Gemma4ForCausalLM": {
        "dense": FamilyCase(
            "gemma4_text",
            {
                "hidden_size_per_layer_input": 0,
                "head_dim": 16,
                "global_head_dim": 32,
                "sliding_window": 9,
                "layer_types": [SLIDING, FULL] * 2,
                "final_logit_softcapping": 4.0,
            },
        ),
        "shared, double wide": FamilyCase("gemma4_text", GEMMA4_SMALL),
        "inputs": FamilyCase(
            "gemma4_text",
            {
                "hidden_size_per_layer_input": 12,
                "vocab_size_per_layer_input": 330,
                "rms_norm_eps": 0.1,  # so that factors before norms are seen
                "head_dim": 16,
                "global_head_dim": 32,
                "sliding_window": 9,
                "num_hidden_layers": 2,
            },
        ),
        "shared, experts": FamilyCase(
            "gemma4_text",
            {
                **GEMMA4_SMALL,
                "hidden_size_per_layer_input": 0,
                "output_hidden_states": True,  # else transformers cuts inputs that are not there
                "use_double_wide_mlp": False,
                "num_key_value_heads": 1,
                "attention_k_eq_v": True,
                "attention_bias": True,
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 48,
            },
        ),
        "experts, values of keys": FamilyCase(
            "gemma4_text",
            {
                "hidden_size_per_layer_input": 0,
                "head_dim": 24,
                "global_head_dim": 32,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": True,
                "sliding_window": 16,
                "layer_types": [FULL, SLIDING, SLIDING, FULL],
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 48,
            },
        ),
    },
    "GraniteForCausalLM": {
        "factors": FamilyCase(
            "granite",
            {
                "embedding_multiplier": 3.0,
                "logits_scaling": 2.5,
                "residual_multiplier": 0.4,
                "attention_multiplier": 0.2,
                "attention_bias": True,
            },
        ),
        "tied": FamilyCase(
            "granite",
            {"tie_word_embeddings": True, "mlp_bias": True, "attention_multiplier": 0.25},
        ),
    },
    "SmolLM3ForCausalLM": {
        "every second": FamilyCase("smollm3", {"no_rope_layer_interval": 2}),
        "windows": FamilyCase(
            "smollm3",
            {
                "no_rope_layers": [0, 1, 1, 0],
                "use_sliding_window": True,
                "sliding_window": 10,
                "attention_bias": True,
                "mlp_bias": True,
                "tie_word_embeddings": False,
            },
        ),
    },
    "GlmForCausalLM": {
        "half": FamilyCase("glm", {"head_dim": 16}),
        "quarter": FamilyCase(
            "glm",
            {"head_dim": 24, "attention_bias": False, "rope_parameters": partial(0.25)},
        ),
    },
    "Glm4ForCausalLM": {
        "half": FamilyCase("glm4", {"head_dim": 16}),
        "whole": FamilyCase(
            "glm4",
            {"head_dim": 24, "rope_parameters": partial(1.0), "tie_word_embeddings": True},
        ),
    },
    "Phi3ForCausalLM": {
        "longrope": FamilyCase(
            "phi3",
            {"rope_parameters": longrope(8), "original_max_position_embeddings": 16},
        ),
        "partial, window": FamilyCase(
            "phi3", {"rope_parameters": partial(0.75), "sliding_window": 12}
        ),
    },
    "Ernie4_5ForCausalLM": {
        "plain": FamilyCase("ernie4_5", {"head_dim": 24}),
        "biases": FamilyCase(
            "ernie4_5", {"head_dim": 16, "use_bias": True, "tie_word_embeddings": False}
        ),
    },
    "NemotronForCausalLM": {
        "half": FamilyCase("nemotron", {"head_dim": 16}),
        "biases": FamilyCase(
            "nemotron",
            {"head_dim": 24, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
        ),
    },
    "ArceeForCausalLM": {
        "plain": FamilyCase("arcee", {"head_dim": 24}),
        "biases, yarn": FamilyCase(
            "arcee",
            {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "rope_parameters": YARN},
        ),
    },
    "Jais2ForCausalLM": {
        "biases": FamilyCase("jais2", {"head_dim": 24}),
        "no biases": FamilyCase(
            "jais2", {"head_dim": 16, "attention_bias": False, "mlp_bias": False}
        ),
    },
    "CohereForCausalLM": {
        "plain": FamilyCase("cohere", {"logit_scale": 0.3}),
        "norms": FamilyCase("cohere", {"use_qk_norm": True, "logit_scale": 0.5}),
        "biases, untied": FamilyCase(
            "cohere",
            {"attention_bias": True, "tie_word_embeddings": False, "logit_scale": 2.0},
        ),
    },
    "Cohere2ForCausalLM": {
        "types": FamilyCase("cohere2", {"head_dim": 24, "sliding_window": 9}),
        "other types": FamilyCase(
            "cohere2",
            {
                "head_dim": 16,
                "sliding_window": 16,
                "layer_types": MIXED,
                "attention_bias": True,
                "logit_scale": 1.5,
            },
        ),
    },
    "StableLmForCausalLM": {
        "serial": FamilyCase("stablelm", {"use_qkv_bias": True}),
        "norms": FamilyCase("stablelm", {"qk_layernorm": True}),
        "parallel": FamilyCase(
            "stablelm",
            {"use_parallel_residual": True, "rope_parameters": partial(0.5)},
        ),
    },
    "PhiForCausalLM": {
        "half": FamilyCase("phi", {}),
        "quarter": FamilyCase("phi", {"rope_parameters": partial(0.25), "num_key_value_heads": 4}),
    },
    "Starcoder2ForCausalLM": {
        "window": FamilyCase("starcoder2", {"sliding_window": 11}),
        "no biases": FamilyCase("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    },
    "GPTNeoXForCausalLM": {
        "parallel": FamilyCase("gpt_neox", {}),
        "serial, no biases": FamilyCase(
            "gpt_neox",
            {
                "use_parallel_residual": False,
                "attention_bias": False,
                "rope_parameters": partial(1.0),
                "hidden_act": "gelu_new",
            },
        ),
    },
    "GPTJForCausalLM": {
        "half": FamilyCase("gptj", GPT | {"rotary_dim": 8}),
        "whole": FamilyCase("gptj", GPT | {"rotary_dim": 16, "n_inner": 72}),
    },
    "GPT2LMHeadModel": {
        "plain": FamilyCase("gpt2", GPT),
        "scaled by layer": FamilyCase(
            "gpt2",
            GPT
            | {
                "scale_attn_by_inverse_layer_idx": True,
                "n_inner": 72,
                "tie_word_embeddings": False,
                "activation_function": "relu",
            },
        ),
    },
    "GPTBigCodeForCausalLM": {
        "one head": FamilyCase("gpt_bigcode", GPT),
        "all heads": FamilyCase("gpt_bigcode", GPT | {"multi_query": False, "n_inner": 72}),
    },
    "OPTForCausalLM": {
        "125m": FamilyCase("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}, 40.0),
        "350m": FamilyCase(
            "opt",
            {
                "ffn_dim": 96,
                "word_embed_proj_dim": 32,
                "do_layer_norm_before": False,
            },
            12.0,
        ),
        "no biases": FamilyCase(
            "opt",
            {
                "ffn_dim": 96,
                "word_embed_proj_dim": 64,
                "enable_bias": False,
                "layer_norm_elementwise_affine": False,
                "activation_function": "gelu",
                "tie_word_embeddings": False,
            },
        ),
    },
    "OlmoForCausalLM": {
        "clipped": FamilyCase("olmo", {"clip_qkv": 0.8}),
        "biases": FamilyCase("olmo", {"attention_bias": True, "rope_parameters": LLAMA3}),
    },
    "MixtralForCausalLM": {
        "2 of 4": FamilyCase("mixtral", {"num_local_experts": 4}),
        "1 of 3, window": FamilyCase(
            "mixtral",
            {
                "num_local_experts": 3,
                "num_experts_per_tok": 1,
                "sliding_window": 12,
                "head_dim": 24,
            },
        ),
    },
    "Qwen2MoeForCausalLM": {
        "divided": FamilyCase(
            "qwen2_moe",
            EXPERTS | {"shared_expert_intermediate_size": 40, "norm_topk_prob": True},
        ),
        "windows, dense layers": FamilyCase(
            "qwen2_moe",
            EXPERTS
            | {
                "shared_expert_intermediate_size": 72,
                "use_sliding_window": True,
                "sliding_window": 9,
                "max_window_layers": 3,
                "decoder_sparse_step": 2,
                "qkv_bias": False,
            },
        ),
    },
    "Qwen3MoeForCausalLM": {
        "divided": FamilyCase("qwen3_moe", EXPERTS | {"norm_topk_prob": True, "head_dim": 24}),
        "dense layers, window": FamilyCase(
            "qwen3_moe",
            EXPERTS
            | {
                "mlp_only_layers": [0, 2],
                "attention_bias": True,
                "use_sliding_window": True,
                "sliding_window": 11,
            },
        ),
    },
    "MellumForCausalLM": {
        "windows": FamilyCase(
            "mellum",
            EXPERTS
            | {
                "head_dim": 24,
                "sliding_window": 9,
                "layer_types": MIXED,
                "rope_parameters": {
                    SLIDING: {"rope_type": "default", "rope_theta": 300.0},
                    FULL: YARN,
                },
            },
        ),
        "dense layers": FamilyCase(
            "mellum",
            EXPERTS
            | {
                "head_dim": 16,
                "attention_bias": True,
                "norm_topk_prob": False,
                "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
            },
        ),
    },
    "GraniteMoeForCausalLM": {
        "factors": FamilyCase(
            "granitemoe",
            {
                "num_local_experts": 4,
                "embedding_multiplier": 3.0,
                "logits_scaling": 2.5,
                "residual_multiplier": 0.4,
                "attention_multiplier": 0.2,
            },
        ),
    },
    "GraniteMoeSharedForCausalLM": {
        "shared": FamilyCase(
            "granitemoeshared",
            {"num_local_experts": 4, "shared_intermediate_size": 40, "attention_multiplier": 0.3},
        ),
        "not shared": FamilyCase(
            "granitemoeshared",
            {"num_local_experts": 4, "shared_intermediate_size": 0, "attention_multiplier": 0.3},
        ),
    },
    "GptOssForCausalLM": {
        "yarn": FamilyCase(
            "gpt_oss",
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "head_dim": 16,
                "sliding_window": 9,
                "swiglu_limit": 0.6,
                "rope_parameters": YARN | {"truncate": False},
            },
        ),
        "other types": FamilyCase(
            "gpt_oss",
            {
                "num_local_experts": 3,
                "num_experts_per_tok": 1,
                "head_dim": 24,
                "sliding_window": 16,
                "layer_types": MIXED,
                "attention_bias": False,
            },
        ),
    },
    "Glm4MoeForCausalLM": {
        "groups": FamilyCase(
            "glm4_moe",
            SIGMOID_EXPERTS | {"use_qk_norm": True, "attention_bias": True, "n_shared_experts": 2},
        ),
        "no groups": FamilyCase(
            "glm4_moe",
            SIGMOID_EXPERTS
            | {
                "n_group": 1,
                "topk_group": 1,
                "norm_topk_prob": False,
                "first_k_dense_replace": 2,
                "routed_scaling_factor": 1.7,
            },
        ),
    },
    "Dots1ForCausalLM": {
        "groups": FamilyCase(
            "dots1",
            SIGMOID_EXPERTS
            | {
                "norm_topk_prob": True,
                "attention_bias": True,
                "n_shared_experts": 2,
                "sliding_window": None,
            },
        ),
        "windows": FamilyCase(
            "dots1",
            SIGMOID_EXPERTS
            | {
                "n_group": 1,
                "topk_group": 1,
                "n_shared_experts": 1,
                "routed_scaling_factor": 1.7,
                "head_dim": 24,
                "sliding_window": 9,
                "max_window_layers": 2,
            },
        ),
    },
    "DeepseekV3ForCausalLM": {
        "yarn": FamilyCase(
            "deepseek_v3",
            LATENT
            | SIGMOID_EXPERTS
            | {
                "n_shared_experts": 2,
                "attention_bias": True,
                "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
            },
        ),
        "queries without a latent": FamilyCase(
            "deepseek_v3",
            LATENT
            | SIGMOID_EXPERTS
            | {
                "q_lora_rank": None,
                "rope_interleave": False,
                "n_group": 1,
                "topk_group": 1,
                "n_shared_experts": 1,
                "first_k_dense_replace": 2,
                "routed_scaling_factor": 1.7,
            },
        ),
    },
    "Glm4MoeLiteForCausalLM": {
        "dense first": FamilyCase(
            "glm4_moe_lite",
            LATENT
            | SIGMOID_EXPERTS
            | {
                "first_k_dense_replace": MISSING,
                "n_shared_experts": 2,
                "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
            },
        ),
        "listed types": FamilyCase(
            "glm4_moe_lite",
            LATENT
            | SIGMOID_EXPERTS
            | {
                "first_k_dense_replace": MISSING,
                "q_lora_rank": None,
                "attention_bias": True,
                "rope_interleave": False,
                "n_group": 1,
                "topk_group": 1,
                "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
            },
        ),
    },
    "MiniCPM3ForCausalLM": {
        "longrope": FamilyCase(
            "minicpm3",
            LATENT
            | {
                "scale_emb": 3,
                "scale_depth": 0.9,
                "dim_model_base": 40,
                "rope_parameters": longrope(4),
                "original_max_position_embeddings": 16,
            },
        ),
        "no factors": FamilyCase(
            "minicpm3",
            LATENT
            | {
                "q_lora_rank": None,
                "v_head_dim": None,
                "scale_emb": 1,
                "scale_depth": None,
                "dim_model_base": None,
                "mlp_bias": True,
                "attention_bias": True,
                "tie_word_embeddings": False,
            },
        ),
    },
    "DeepseekV2ForCausalLM": {
        "groups": FamilyCase(
            "deepseek_v2",
            LATENT
            | SIGMOID_EXPERTS
            | {
                "topk_method": "group_limited_greedy",
                "n_shared_experts": 2,
                "routed_scaling_factor": 2.5,
                "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7},
            },
        ),
        "greedy": FamilyCase(
            "deepseek_v2",
            LATENT
            | SIGMOID_EXPERTS
            | {
                "q_lora_rank": None,
                "mlp_bias": True,
                "n_shared_experts": 1,
                "first_k_dense_replace": 0,
            },
        ),
    },
    "PhimoeForCausalLM": {
        "biases": FamilyCase(
            "phimoe",
            {
                "num_local_experts": 4,
                "attention_bias": True,
                "lm_head_bias": True,
                "router_jitter_noise": 0.1,
            },
        ),
        "window": FamilyCase("phimoe", {"num_local_experts": 3, "sliding_window": 10}),
    },
    "Ernie4_5_MoeForCausalLM": {
        "shared": FamilyCase(
            "ernie4_5_moe",
            {
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_intermediate_size": 48,
                "moe_layer_start_index": 1,
                "moe_layer_end_index": 2,
                "moe_norm_min": 0.5,
            },
        ),
        "not shared": FamilyCase(
            "ernie4_5_moe",
            {
                "moe_num_experts": 3,
                "moe_k": 1,
                "moe_intermediate_size": 32,
                "moe_num_shared_experts": 0,
                "moe_layer_start_index": 0,
                "moe_layer_end_index": 3,
                "moe_layer_interval": 2,
                "use_bias": True,
                "tie_word_embeddings": False,
            },
        ),
    },
    "GraniteSWAForCausalLM": {
        "thetas": FamilyCase(
            "granite_swa",
            {
                "sliding_window": 9,
                "layer_rope_theta": [10000.0, 0, 500.0, 0],
                "attention_multiplier": 0.3,
                "residual_multiplier": 0.6,
            },
        ),
    },
    "GraniteMoeSWAForCausalLM": {
        "thetas": FamilyCase(
            "granitemoe_swa",
            {
                "num_local_experts": 4,
                "shared_intermediate_size": 40,
                "sliding_window": 9,
                "layer_rope_theta": [10000.0, 0, 500.0, 0],
                "attention_multiplier": 0.3,
                "residual_multiplier": 0.6,
            },
        ),
        "not shared": FamilyCase(
            "granitemoe_swa",
            {
                "num_local_experts": 3,
                "num_experts_per_tok": 1,
                "sliding_window": 16,
                "layer_types": MIXED,
                "attention_multiplier": 0.25,
            },
        ),
    },
    "HyperCLOVAXForCausalLM": {
        "post norms": FamilyCase(
            "hyperclovax",
            {
                "head_dim": 16,
                "logits_scaling": 1.7,
                "residual_multiplier": 0.4,
                "embedding_multiplier": 2.0,
                "attention_multiplier": 0.2,
            },
        ),
        "no post norms": FamilyCase(
            "hyperclovax", {"head_dim": 24, "use_post_norm": False, "attention_multiplier": 0.3}
        ),
    },
    "Exaone4ForCausalLM": {
        "windows": FamilyCase("exaone4", {"sliding_window": 9, "sliding_window_pattern": 2}),
        "no windows": FamilyCase(
            "exaone4",
            {"sliding_window": None, "layer_types": [FULL] * 4, "rope_parameters": LLAMA3},
        ),
    },
    "ExaoneMoeForCausalLM": {
        "windows": FamilyCase(
            "exaone_moe",
            SIGMOID_EXPERTS
            | {
                "n_routed_experts": MISSING,
                "num_experts": 8,
                "num_shared_experts": 2,
                "sliding_window": 9,
                "head_dim": 24,
            },
        ),
        "listed types": FamilyCase(
            "exaone_moe",
            EXPERTS
            | {
                "sliding_window": 16,
                "layer_types": MIXED,
                "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
                "norm_topk_prob": False,
                "head_dim": 16,
                "rope_parameters": LLAMA3,
            },
        ),
    },
    "ApertusForCausalLM": {
        "llama3": FamilyCase("apertus", {"rope_parameters": LLAMA3}),
        "biases": FamilyCase("apertus", {"attention_bias": True, "hidden_act": "gelu"}),
    },
    "HunYuanDenseV1ForCausalLM": {
        "plain": FamilyCase("hunyuan_v1_dense", {"head_dim": 24, "attention_bias": True}),
        "alpha": FamilyCase(
            "hunyuan_v1_dense",
            {
                "head_dim": 16,
                "rope_parameters": {
                    "rope_type": "dynamic",
                    "rope_theta": 10000.0,
                    "alpha": 50.0,
                    "factor": 1.0,
                },
            },
        ),
    },
    "HunYuanMoEV1ForCausalLM": {
        "2 of 4": FamilyCase("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 16}),
        "by layer": FamilyCase(
            "hunyuan_v1_moe", {"num_experts": 4, "moe_topk": [1, 2, 3, 1], "head_dim": 24}
        ),
    },
    "HYV3ForCausalLM": {
        "dense first": FamilyCase(
            "hy_v3", EXPERTS | {"head_dim": 24, "num_shared_experts": 2, "attention_bias": True}
        ),
        "listed types": FamilyCase(
            "hy_v3",
            EXPERTS
            | {
                "head_dim": 16,
                "router_scaling_factor": 1.7,
                "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
                "rope_parameters": YARN,
            },
        ),
    },
    "FalconForCausalLM": {
        "7b": FamilyCase("falcon", {"ffn_hidden_size": 72, "num_kv_heads": 4}),
        "40b": FamilyCase(
            "falcon",
            {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": None},
        ),
        "rw": FamilyCase(
            "falcon",
            {
                "alibi": True,
                "multi_query": False,
                "num_kv_heads": 4,
                "parallel_attn": False,
                "bias": True,
            },
            attention="sdpa",
        ),
        "one norm": FamilyCase(
            "falcon",
            {
                "new_decoder_architecture": True,
                "num_kv_heads": 1,
                "num_ln_in_parallel_attn": 1,
                "bias": True,
            },
        ),
        "serial": FamilyCase(
            "falcon",
            {"multi_query": False, "num_kv_heads": 4, "parallel_attn": False, "bias": True},
        ),
    },
    "Olmo2ForCausalLM": {
        "plain": FamilyCase("olmo2", {}),
        "biases, yarn": FamilyCase("olmo2", {"attention_bias": True, "rope_parameters": YARN}),
    },
    "Olmo3ForCausalLM": {
        "windows": FamilyCase("olmo3", {"sliding_window": 9}),
        "two embeddings": FamilyCase(
            "olmo3",
            {
                "sliding_window": 16,
                "layer_types": MIXED,
                "rope_parameters": {
                    SLIDING: {"rope_type": "default", "rope_theta": 300.0},
                    FULL: YARN,
                },
            },
        ),
    },
    "OlmoeForCausalLM": {
        "clipped": FamilyCase(
            "olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.8}
        ),
        "divided": FamilyCase(
            "olmoe",
            {
                "num_experts": 3,
                "num_experts_per_tok": 1,
                "norm_topk_prob": True,
                "attention_bias": True,
            },
        ),
    },
    "FlexOlmoForCausalLM": {
        "divided": FamilyCase(
            "flex_olmo", {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}
        ),
    },
    "MiniMaxM2ForCausalLM": {
        "half": FamilyCase(
            "minimax_m2",
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "head_dim": 24,
                "rope_parameters": partial(0.5),
            },
        ),
        "rotary_dim": FamilyCase(
            "minimax_m2",
            {"num_local_experts": 3, "num_experts_per_tok": 1, "head_dim": 16, "rotary_dim": 4},
        ),
    },
    "BloomForCausalLM": {
        "4 heads": FamilyCase("bloom", BLOOM | {"n_head": 4}),
        "6 heads": FamilyCase("bloom", BLOOM | {"n_head": 6, "hidden_size": 96}),
    },
    "MptForCausalLM": {
        "4 heads": FamilyCase("mpt", MPT | {"n_heads": 4}),
        "6 heads, clipped": FamilyCase(
            "mpt",
            MPT
            | {
                "n_heads": 6,
                "d_model": 96,
                "attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.3},
            },
        ),
    },
    "Llama4ForCausalLM": {
        "chunks": FamilyCase(
            "llama4_text",
            {
                "num_local_experts": 4,
                "head_dim": 24,
                "intermediate_size_mlp": 80,
                "interleave_moe_layer_step": 2,
                "attention_chunk_size": 16,
                "no_rope_layer_interval": 2,
                "floor_scale": 8,
            },
        ),
        "no norm": FamilyCase(
            "llama4_text",
            {
                "num_local_experts": 3,
                "num_experts_per_tok": 2,
                "head_dim": 16,
                "intermediate_size_mlp": 64,
                "attention_chunk_size": 31,
                "no_rope_layers": [1, 0, 1, 1],
                "use_qk_norm": False,
                "attention_bias": True,
                "attn_temperature_tuning": False,
            },
        ),
    },
    "HeliumForCausalLM": {
        "plain": FamilyCase("helium", {"head_dim": 16}),
        "biases": FamilyCase("helium", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    },
}
