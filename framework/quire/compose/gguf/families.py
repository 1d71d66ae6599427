"""Table of the architectures of GGUF files: the model class of each, its metadata and its tensors.

A row says what differs from Llama. Metadata and tensors have llama.cpp's names on the left, and
those of the layout of Hugging Face, or of quire's decoder, on the right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.compose.gguf.model_values import ModelValues

WINDOW, EXPERT_COUNT = "attention.sliding_window", "expert_count"
WIDTH, KV_HEADS = "feed_forward_length", "attention.head_count_kv"

BLOCK, LAYER = "blk.{layer}", "model.layers.{layer}"
EXPERT = f"{LAYER}.mlp.experts.{{expert}}"
PARTS = ("gate", "up", "down")
QUERIES, KEYS = f"{BLOCK}.attn_q", f"{BLOCK}.attn_k"
TENSORS: Mapping[
    str, str | tuple[str, ...]
] = {  # of all families, unless they have another name for one
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    f"{BLOCK}.attn_norm": f"{LAYER}.input_layernorm",
    f"{BLOCK}.ffn_norm": f"{LAYER}.post_attention_layernorm",
    QUERIES: f"{LAYER}.self_attn.q_proj",
    KEYS: f"{LAYER}.self_attn.k_proj",
    f"{BLOCK}.attn_v": f"{LAYER}.self_attn.v_proj",
    f"{BLOCK}.attn_output": f"{LAYER}.self_attn.o_proj",
    f"{BLOCK}.attn_q_norm": f"{LAYER}.self_attn.q_norm",
    f"{BLOCK}.attn_k_norm": f"{LAYER}.self_attn.k_norm",
    f"{BLOCK}.ffn_gate_inp": f"{LAYER}.mlp.gate",
    f"{BLOCK}.ffn_gate_inp_shexp": f"{LAYER}.mlp.shared_expert_gate",
    f"{BLOCK}.exp_probs_b.bias": f"{LAYER}.mlp.gate.e_score_correction_bias",
    **{f"{BLOCK}.ffn_{part}": f"{LAYER}.mlp.{part}_proj" for part in PARTS},
    **{f"{BLOCK}.ffn_{part}_exps": f"{EXPERT}.{part}_proj" for part in PARTS},  # stacks of all
    f"{BLOCK}.ffn_gate_up_exps": (f"{EXPERT}.gate_proj", f"{EXPERT}.up_proj"),
    **{f"{BLOCK}.ffn_{part}.{{expert}}": f"{EXPERT}.{part}_proj" for part in PARTS},  # until 2024
    **{f"{BLOCK}.ffn_{part}_shexp": f"{LAYER}.mlp.shared_expert.{part}_proj" for part in PARTS},
}
NORM_AFTER_ATTENTION = {f"{BLOCK}.post_attention_norm": f"{LAYER}.post_attention_layernorm"}
SANDWICH = NORM_AFTER_ATTENTION | {
    f"{BLOCK}.ffn_norm": f"{LAYER}.pre_feedforward_layernorm",
    f"{BLOCK}.post_ffw_norm": f"{LAYER}.post_feedforward_layernorm",
}
FUSED_GATE_UP = {f"{BLOCK}.ffn_up": f"{LAYER}.mlp.gate_up_proj"}
GEMMA4_EXPERT = f"{LAYER}.mlp.moe.experts.{{expert}}"
GEMMA4_TENSORS: Mapping[str, str | tuple[str, ...]] = {
    **SANDWICH,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    f"{BLOCK}.inp_gate": f"{LAYER}.per_layer_input_gate",
    f"{BLOCK}.proj": f"{LAYER}.per_layer_projection",
    f"{BLOCK}.post_norm": f"{LAYER}.post_per_layer_input_norm",
    f"{BLOCK}.layer_output_scale.weight": f"{LAYER}.layer_scalar",
    f"{BLOCK}.ffn_gate_inp": f"{LAYER}.router.proj",
    f"{BLOCK}.ffn_gate_inp.scale": f"{LAYER}.router.scale",
    f"{BLOCK}.ffn_down_exps.scale": f"{LAYER}.router.per_expert_scale",
    f"{BLOCK}.pre_ffw_norm_2": f"{LAYER}.pre_feedforward_layernorm_2",
    f"{BLOCK}.post_ffw_norm_1": f"{LAYER}.post_feedforward_layernorm_1",
    f"{BLOCK}.post_ffw_norm_2": f"{LAYER}.post_feedforward_layernorm_2",
    f"{BLOCK}.ffn_gate_up_exps": (f"{GEMMA4_EXPERT}.gate_proj", f"{GEMMA4_EXPERT}.up_proj"),
    **{f"{BLOCK}.ffn_{part}_exps": f"{GEMMA4_EXPERT}.{part}_proj" for part in PARTS},
}
DRAFT_LAYERS = {
    f"{BLOCK}.nextn.{name}": f"{LAYER}.{name}"
    for name in (
        "eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm",
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """A value of metadata that a family has.

    Attributes:
        name: Its key in the config.
        kind: "count" from 1, "whole" from 0, "number" above 0, or "flag".
        is_optional: Whether files may lack it, or have 0 in place of none.
    """

    name: str
    kind: Literal["count", "whole", "number", "flag"] = "count"
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Epsilon:
    """Key of the epsilon of the norms, in the metadata and in the config."""

    key: str = "attention.layer_norm_rms_epsilon"
    name: str = "rms_norm_eps"


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture of GGUF.

    Attributes:
        name: Its name in `general.architecture`, which the keys of its metadata begin with.
        architecture: Name of the model class.
        model_type: Model type in config.json.
        keys: Metadata beyond that of Llama.
        tensors: Names of tensors that are not in `TENSORS`, or mean something else.
        flags: Keys of the config that say whether there is a tensor, and this tensor.
        constants: Values of the config that no file has, such as the activation.
        derive: Function from the config, and from what the file says, to further values of it.
        epsilon: Key of the epsilon of the norms.
        usual: Further keys of metadata, and the only value of each that the family has.
        ignored: Keys that change nothing for text.
        rope: Values of a scaled rotary embedding that no file has.
        rope_keys: Further values of a scaled rotary embedding, by their keys in the metadata.
        has_own_ropes: Whether layers with a window have a rotary embedding of their own, and the
            others one over a part of the wavelengths, which a tensor marks.
        by_layer: Keys that may have a number for each layer; the config has that of the first.
        window_period: Number of layers of which the last one has full attention, and the others a
            sliding window; None: the family has no such layers.
        is_paired: Whether rows of queries and keys are in rotary pairs.
        is_partly_rotated: Whether a part of each head may be rotated.
        norm_offset: Number that is added to the weights of norms in the file.
        variants: Families that a file is of if it has a value for a key.
    """

    name: str
    architecture: str
    model_type: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    tensors: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    derive: Callable[[Mapping[str, Any], ModelValues], Mapping[str, Any]] = lambda *_: {}
    epsilon: Epsilon = Epsilon()
    usual: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    rope: Mapping[str, Any] = field(default_factory=dict)
    rope_keys: Mapping[str, str] = field(default_factory=dict)
    has_own_ropes: bool = False
    by_layer: frozenset[str] = frozenset()
    window_period: int | None = None
    is_paired: bool = False
    is_partly_rotated: bool = False
    norm_offset: float = 0.0
    variants: Mapping[str, Family] = field(default_factory=dict)


def _scaled_by(
    num_layers: int,
) -> Callable[[Mapping[str, Any], ModelValues], Mapping[str, Any]]:
    """Return the function for the scale of Gemma's scores, which no file has.

    It is by the size of a head, and in the model of 27B, which is known by its number of layers,
    by the hidden size over the number of heads.
    """

    def derive(config: Mapping[str, Any], _: ModelValues) -> Mapping[str, Any]:
        is_largest = config["num_hidden_layers"] == num_layers
        per_head = config["hidden_size"] // config["num_attention_heads"]
        return {"query_pre_attn_scalar": per_head if is_largest else config["head_dim"]}

    return derive


def _gemma4(config: Mapping[str, Any], values: ModelValues) -> Mapping[str, Any]:
    """Return what differs between the layers of Gemma 4.

    Its full layers have larger heads, perhaps fewer of them for keys, and perhaps no values. Layers
    without keys of their own may have a wider MLP.
    """
    types, num_shared = config["layer_types"], config["num_kv_shared_layers"]
    full = types.index("full_attention") if "full_attention" in types else len(types) - 1
    sliding = types.index("sliding_attention") if "sliding_attention" in types else 0
    widths, kv_heads = values.by_layer(WIDTH), values.by_layer(KV_HEADS)
    derived: dict[str, Any] = {
        "global_head_dim": values.count("attention.key_length"),
        "attention_k_eq_v": not values.has_tensor(f"blk.{full}.attn_v.weight"),
        "enable_moe_block": "num_experts" in config,
    }
    if kv_heads is not None:
        derived["num_key_value_heads"] = kv_heads[sliding]
        derived["num_global_key_value_heads"] = kv_heads[full]
    if widths is not None:
        num_own = len(types) - num_shared
        wider = [widths[0] * (2 if i >= num_own else 1) for i in range(len(types))]
        derived["use_double_wide_mlp"] = widths[: len(types)] == wider
        if widths[: len(types)] not in (wider, [widths[0]] * len(types)):
            raise values.wrong(WIDTH, widths, f"equal, or twice in the last {num_shared} layers")
    if config["hidden_size_per_layer_input"]:
        derived["vocab_size_per_layer_input"] = values.tensor("per_layer_token_embd.weight").shape[
            0
        ]
    return derived


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
    Family(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        keys=EXPERTS | OWN_WIDTH | NORMALIZED | {EXPERT_COUNT: Key("num_experts")},
        flags={"attention_bias": QUERY_BIAS},
        constants={"use_sliding_window": False, "norm_topk_prob": True},
        usual=SOFTMAX,
    ),
    Family(
        "qwen3vlmoe",
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        keys=EXPERTS | OWN_WIDTH | NORMALIZED | {EXPERT_COUNT: Key("num_experts")},
        flags={"attention_bias": QUERY_BIAS},
        constants={"use_sliding_window": False, "norm_topk_prob": True},
        usual=SOFTMAX,
        ignored=SECTIONS,
    ),
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
        derive=_scaled_by(46),
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
        derive=_scaled_by(62),
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
        derive=_gemma4,
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
