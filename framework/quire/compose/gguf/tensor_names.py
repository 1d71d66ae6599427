"""Names of tensors in GGUF files, and in the layout of Hugging Face or in quire's decoder.

Names are those of modules, whose tensors may have any suffix, or whole ones. Two names on the right
have their rows in one tensor. A placeholder that the left one lacks counts the entries of a stack.
"""

from __future__ import annotations

from collections.abc import Mapping

TensorNames = Mapping[str, str | tuple[str, ...]]

BLOCK, LAYER = "blk.{layer}", "model.layers.{layer}"
EXPERT = f"{LAYER}.mlp.experts.{{expert}}"
PARTS = ("gate", "up", "down")
QUERIES, KEYS = f"{BLOCK}.attn_q", f"{BLOCK}.attn_k"
TENSORS: TensorNames = {  # of all families, unless they have another name for one
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
GEMMA4_TENSORS: TensorNames = {
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
KEY_PARTS, VALUE_PARTS = f"{BLOCK}.attn_k_b.weight", f"{BLOCK}.attn_v_b.weight"
KEYS_AND_VALUES = f"{LAYER}.self_attn.kv_b_proj"
LATENT_TENSORS = {
    f"{BLOCK}.attn_q_a": f"{LAYER}.self_attn.q_a_proj",
    f"{BLOCK}.attn_q_a_norm": f"{LAYER}.self_attn.q_a_layernorm",
    f"{BLOCK}.attn_q_b": f"{LAYER}.self_attn.q_b_proj",
    f"{BLOCK}.attn_kv_a_mqa": f"{LAYER}.self_attn.kv_a_proj_with_mqa",
    f"{BLOCK}.attn_kv_a_norm": f"{LAYER}.self_attn.kv_a_layernorm",
    f"{BLOCK}.attn_kv_b": KEYS_AND_VALUES,  # until 2025, then in two parts
}
DRAFT_LAYERS = {
    f"{BLOCK}.nextn.{name}": f"{LAYER}.{name}"
    for name in (
        "eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm",
    )
}  # fmt: skip
