"""Table of the architectures of GGUF files: the model class of each, its metadata and its tensors.

A row says what differs from Llama. Metadata has llama.cpp's keys on the left, and those of
config.json on the right.
"""

from __future__ import annotations

from dataclasses import replace

from quire.compose.gguf.family import (
    EXPERT_COUNT,
    KV_HEADS,
    WIDTH,
    WINDOW,
    Epsilon,
    Family,
    Key,
)
from quire.compose.gguf.gemma_values import gemma4_values, scaled_by
from quire.compose.gguf.latent_values import (
    MAGNITUDE,
    OWN_KEY_SIZE,
    OWN_VALUE_SIZE,
    latent_values,
)
from quire.compose.gguf.tensor_names import (
    BLOCK,
    DRAFT_LAYERS,
    FUSED_GATE_UP,
    GEMMA4_TENSORS,
    LATENT_TENSORS,
    LAYER,
    NORM_AFTER_ATTENTION,
    SANDWICH,
)

LAYER_NORM = "attention.layer_norm_epsilon"
HEAD_BIAS = "output.bias"
QUERY_BIAS, OUTPUT_BIAS, MLP_BIAS = (
    f"blk.0.{name}.bias" for name in ("attn_q", "attn_output", "ffn_up")
)
EXPERTS = {"expert_used_count": Key("num_experts_per_tok")}
NORMALIZED = {"expert_weights_norm": Key("norm_topk_prob", "flag", is_optional=True)}
SOFTMAX, SIGMOID = {"expert_gating_func": 1}, {"expert_gating_func": 2}
OWN_WIDTH = {"expert_feed_forward_length": Key("moe_intermediate_size")}
FACTORS = {
    "attention.scale": Key("attention_multiplier", "number"),
    "embedding_scale": Key("embedding_multiplier", "number"),
    "residual_scale": Key("residual_multiplier", "number"),
    "logit_scale": Key("logits_scaling", "number"),
}
LOGIT_CAP = Key("final_logit_softcapping", "number", is_optional=True)
SIGMOID_EXPERTS = {
    **EXPERTS,
    **OWN_WIDTH,
    **NORMALIZED,
    EXPERT_COUNT: Key("n_routed_experts"),
    "expert_group_count": Key("n_group", is_optional=True),
    "expert_group_used_count": Key("topk_group", is_optional=True),
    "expert_shared_count": Key("n_shared_experts", "whole"),
    "expert_weights_scale": Key("routed_scaling_factor", "number"),
    "leading_dense_block_count": Key("first_k_dense_replace", "whole"),
}
ONE_GROUP = {"n_group": 1, "topk_group": 1, "norm_topk_prob": True}
SECTIONS = frozenset({"rope.dimension_sections", "n_deepstack_layers"})
GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
SQUARED_RELU = {"hidden_act": "relu2"}
BIASES = {"attention_bias": QUERY_BIAS, "mlp_bias": MLP_BIAS}

MIXTRAL = Family(
    "llama",
    "MixtralForCausalLM",
    "mixtral",
    keys=EXPERTS | {EXPERT_COUNT: Key("num_local_experts")},
    is_paired=True,
)
MINISTRAL3 = Family(
    "mistral3",
    "Ministral3ForCausalLM",
    "ministral3",
    rope={"mscale": 1.0},
    rope_keys={
        "attention.temperature_scale": "llama_4_scaling_beta",
        "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    },
    is_paired=True,
)
OLMO3 = Family("olmo2", "Olmo3ForCausalLM", "olmo3", tensors=SANDWICH, window_period=4)
LATENT_KEYS = SIGMOID_EXPERTS | {
    "attention.kv_lora_rank": Key("kv_lora_rank"),
    "attention.q_lora_rank": Key("q_lora_rank", is_optional=True),
}
LATENT_SIZES = frozenset({OWN_KEY_SIZE, OWN_VALUE_SIZE, MAGNITUDE})
DEEPSEEK3 = Family(
    "deepseek2",
    "DeepseekV3ForCausalLM",
    "deepseek_v3",
    keys=LATENT_KEYS,
    tensors=LATENT_TENSORS,
    constants=ONE_GROUP,
    derive=latent_values,
    usual=SIGMOID,
    ignored=LATENT_SIZES,
    is_latent=True,
)
QWEN3_MOE = Family(
    "qwen3moe",
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    keys=EXPERTS | OWN_WIDTH | NORMALIZED | {EXPERT_COUNT: Key("num_experts")},
    flags={"attention_bias": QUERY_BIAS},
    constants={"use_sliding_window": False, "norm_topk_prob": True},
    usual=SOFTMAX,
)

ROWS = (
    Family(
        "llama",
        "LlamaForCausalLM",
        "llama",
        flags=BIASES,
        is_paired=True,
        variants={EXPERT_COUNT: MIXTRAL},
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        "qwen2",
        constants={"use_sliding_window": False},
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        "qwen3",
        flags={"attention_bias": QUERY_BIAS},
        constants={"use_sliding_window": False},
    ),
    Family(
        "qwen2vl",
        "Qwen2ForCausalLM",
        "qwen2",
        constants={"use_sliding_window": False},
        ignored=SECTIONS,
    ),
    Family(
        "qwen3vl",
        "Qwen3ForCausalLM",
        "qwen3",
        flags={"attention_bias": QUERY_BIAS},
        constants={"use_sliding_window": False},
        ignored=SECTIONS,
    ),
    Family(
        "qwen2moe",
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        keys=EXPERTS
        | OWN_WIDTH
        | NORMALIZED
        | {
            EXPERT_COUNT: Key("num_experts"),
            "expert_shared_feed_forward_length": Key("shared_expert_intermediate_size"),
        },
        flags={"qkv_bias": QUERY_BIAS},
        constants={"use_sliding_window": False, "norm_topk_prob": False},
        usual=SOFTMAX,
    ),
    QWEN3_MOE,
    replace(QWEN3_MOE, name="qwen3vlmoe", ignored=SECTIONS),
    Family(
        "mistral3",
        "MistralForCausalLM",
        "mistral",
        constants={"sliding_window": None},
        is_paired=True,
        variants={"attention.temperature_scale": MINISTRAL3},
    ),
    Family(
        "gemma",
        "GemmaForCausalLM",
        "gemma",
        constants=GELU,
        norm_offset=1.0,
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        "gemma2",
        keys={
            "attn_logit_softcapping": Key("attn_logit_softcapping", "number"),
            "final_logit_softcapping": Key("final_logit_softcapping", "number"),
        },
        tensors=SANDWICH,
        constants=GELU,
        derive=scaled_by(46),
        window_period=2,
        norm_offset=1.0,
    ),
    Family(
        "gemma3",
        "Gemma3ForCausalLM",
        "gemma3_text",
        keys={
            "final_logit_softcapping": LOGIT_CAP,
            "rope.freq_base_swa": Key("rope_local_base_freq", "number", is_optional=True),
        },
        tensors=SANDWICH,
        constants=GELU | {"rope_local_base_freq": 10_000.0},
        derive=scaled_by(62),
        window_period=6,
        norm_offset=1.0,
    ),
    Family(
        "gemma4",
        "Gemma4ForCausalLM",
        "gemma4_text",
        keys={
            "attention.key_length_swa": Key("head_dim"),
            "attention.shared_kv_layers": Key("num_kv_shared_layers", "whole"),
            "embedding_length_per_layer_input": Key("hidden_size_per_layer_input", "whole"),
            "final_logit_softcapping": LOGIT_CAP,
            EXPERT_COUNT: Key("num_experts", is_optional=True),
            "expert_used_count": Key("top_k_experts", is_optional=True),
            "expert_feed_forward_length": Key("moe_intermediate_size", is_optional=True),
        },
        tensors=GEMMA4_TENSORS,
        constants=GELU,
        derive=gemma4_values,
        has_own_ropes=True,
        by_layer=frozenset({WIDTH, KV_HEADS}),
        window_period=6,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        "phi3",
        keys={
            WINDOW: Key("sliding_window", is_optional=True),
        },
        tensors=FUSED_GATE_UP | {f"{BLOCK}.attn_qkv": f"{LAYER}.self_attn.qkv_proj"},
        is_partly_rotated=True,
    ),
    Family(
        "phimoe",
        "PhimoeForCausalLM",
        "phimoe",
        keys=EXPERTS
        | {
            EXPERT_COUNT: Key("num_local_experts"),
            WINDOW: Key("sliding_window", is_optional=True),
        },
        flags={"attention_bias": QUERY_BIAS, "lm_head_bias": HEAD_BIAS},
    ),
    Family(
        "phi2",
        "PhiForCausalLM",
        "phi",
        constants={"hidden_act": "gelu_new"},
        epsilon=Epsilon(LAYER_NORM, "layer_norm_eps"),
        is_partly_rotated=True,
    ),
    Family(
        "gpt-oss",
        "GptOssForCausalLM",
        "gpt_oss",
        keys=EXPERTS
        | {
            EXPERT_COUNT: Key("num_local_experts"),
            "expert_feed_forward_length": Key("intermediate_size"),
        },
        tensors=NORM_AFTER_ATTENTION | {f"{BLOCK}.attn_sinks.weight": f"{LAYER}.self_attn.sinks"},
        flags={"attention_bias": QUERY_BIAS},
        rope={"truncate": False},
        window_period=2,
    ),
    Family(
        "granite",
        "GraniteForCausalLM",
        "granite",
        keys=FACTORS,
        flags=BIASES,
        is_paired=True,
    ),
    Family(
        "granitemoe",
        "GraniteMoeForCausalLM",
        "granitemoe",
        keys=FACTORS
        | EXPERTS
        | {
            EXPERT_COUNT: Key("num_local_experts"),
            "expert_shared_feed_forward_length": Key("shared_intermediate_size", is_optional=True),
        },
        flags={"attention_bias": QUERY_BIAS},
        is_paired=True,
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        "smollm3",
        flags=BIASES,
        constants={"no_rope_layer_interval": 4, "use_sliding_window": False},
        is_paired=True,
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        "olmo2",
        tensors=SANDWICH,
        variants={WINDOW: OLMO3},
    ),
    Family(
        "olmoe",
        "OlmoeForCausalLM",
        "olmoe",
        keys=EXPERTS | NORMALIZED | {EXPERT_COUNT: Key("num_experts")},
        constants={"norm_topk_prob": False},
        usual=SOFTMAX,
    ),
    Family(
        "command-r",
        "CohereForCausalLM",
        "cohere",
        keys={"logit_scale": Key("logit_scale", "number")},
        flags={"attention_bias": QUERY_BIAS, "use_qk_norm": "blk.0.attn_q_norm.weight"},
        epsilon=Epsilon(LAYER_NORM, "layer_norm_eps"),
    ),
    Family(
        "cohere2",
        "Cohere2ForCausalLM",
        "cohere2",
        keys={"logit_scale": Key("logit_scale", "number")},
        flags={"attention_bias": QUERY_BIAS},
        epsilon=Epsilon(LAYER_NORM, "layer_norm_eps"),
        window_period=4,
    ),
    Family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        "starcoder2",
        flags={"use_bias": QUERY_BIAS},
        constants=GELU,
        epsilon=Epsilon(LAYER_NORM, "norm_epsilon"),
    ),
    Family(
        "stablelm",
        "StableLmForCausalLM",
        "stablelm",
        keys={"use_parallel_residual": Key("use_parallel_residual", "flag", is_optional=True)},
        tensors={
            f"{BLOCK}.attn_{part}_norm": (f"{LAYER}.self_attn.{part}_layernorm.norms.{{head}}")
            for part in "qk"
        },
        flags={"use_qkv_bias": QUERY_BIAS, "qk_layernorm": "blk.0.attn_q_norm.weight"},
        epsilon=Epsilon(LAYER_NORM, "layer_norm_eps"),
        is_partly_rotated=True,
    ),
    Family(
        "nemotron",
        "NemotronForCausalLM",
        "nemotron",
        flags=BIASES,
        constants=SQUARED_RELU,
        epsilon=Epsilon(LAYER_NORM, "norm_eps"),
        is_partly_rotated=True,
        norm_offset=1.0,
    ),
    Family(
        "arcee",
        "ArceeForCausalLM",
        "arcee",
        flags=BIASES,
        constants=SQUARED_RELU,
        is_paired=True,
    ),
    Family(
        "seed_oss",
        "SeedOssForCausalLM",
        "seed_oss",
        tensors=NORM_AFTER_ATTENTION,
        flags=BIASES | {"attention_out_bias": OUTPUT_BIAS},
    ),
    Family(
        "glm4",
        "Glm4ForCausalLM",
        "glm4",
        tensors=FUSED_GATE_UP
        | {
            f"{BLOCK}.post_attention_norm": f"{LAYER}.post_self_attn_layernorm",
            f"{BLOCK}.post_ffw_norm": f"{LAYER}.post_mlp_layernorm",
        },
        flags={"attention_bias": QUERY_BIAS},
        is_partly_rotated=True,
    ),
    Family(
        "glm4moe",
        "Glm4MoeForCausalLM",
        "glm4_moe",
        keys=SIGMOID_EXPERTS
        | {"nextn_predict_layers": Key("num_nextn_predict_layers", "whole", is_optional=True)},
        tensors=NORM_AFTER_ATTENTION | DRAFT_LAYERS,
        flags={"attention_bias": QUERY_BIAS, "use_qk_norm": "blk.0.attn_q_norm.weight"},
        constants=ONE_GROUP,
        usual=SIGMOID,
        is_partly_rotated=True,
    ),
    Family(
        "dots1",
        "Dots1ForCausalLM",
        "dots1",
        keys=SIGMOID_EXPERTS,
        flags={"attention_bias": QUERY_BIAS},
        constants=ONE_GROUP | {"sliding_window": None},
        usual=SIGMOID,
    ),
    Family(
        "minimax-m2",
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        keys=EXPERTS
        | {
            EXPERT_COUNT: Key("num_local_experts"),
            "expert_feed_forward_length": Key("intermediate_size"),
        },
        usual=SIGMOID,
        is_partly_rotated=True,
    ),
    Family(
        "deepseek2",
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        keys=LATENT_KEYS,
        tensors=LATENT_TENSORS,
        constants=ONE_GROUP,
        derive=latent_values,
        usual=SOFTMAX,
        ignored=LATENT_SIZES,
        is_latent=True,
        variants={"expert_gating_func": DEEPSEEK3},
    ),
    Family(
        "ernie4_5",
        "Ernie4_5ForCausalLM",
        "ernie4_5",
        flags={"use_bias": QUERY_BIAS},
    ),
    Family(
        "ernie4_5-moe",
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        keys=OWN_WIDTH
        | {
            EXPERT_COUNT: Key("moe_num_experts"),
            "expert_used_count": Key("moe_k"),
            "expert_shared_count": Key("moe_num_shared_experts", "whole"),
            "interleave_moe_layer_step": Key("moe_layer_interval"),
            "leading_dense_block_count": Key("moe_layer_start_index", "whole"),
        },
        tensors={f"{BLOCK}.exp_probs_b.bias": (f"{LAYER}.mlp.moe_statics.e_score_correction_bias")},
        flags={"use_bias": QUERY_BIAS},
        usual=SOFTMAX,
        ignored=frozenset({"expert_shared_feed_forward_length"}),
    ),
    Family(
        "exaone4",
        "Exaone4ForCausalLM",
        "exaone4",
        tensors=SANDWICH,
        constants={"sliding_window": None},
        variants={
            WINDOW: Family(
                "exaone4", "Exaone4ForCausalLM", "exaone4", tensors=SANDWICH, window_period=4
            )
        },
    ),
    Family(
        "hunyuan-dense",
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        flags={"attention_bias": QUERY_BIAS},
    ),
    Family(
        "hunyuan-moe",
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        keys={
            EXPERT_COUNT: Key("num_experts"),
            "expert_used_count": Key("moe_topk"),
            "expert_feed_forward_length": Key("intermediate_size"),
        },
        flags={"attention_bias": QUERY_BIAS},
        usual=SOFTMAX,
        ignored=frozenset({"expert_shared_count", "expert_shared_feed_forward_length"}),
    ),
)
FAMILIES = {family.name: family for family in ROWS}
BY_ARCHITECTURE = {
    family.architecture: family for row in ROWS for family in (row, *row.variants.values())
}
