"""Families of transformers that run through the fallback: tiny checkpoints with random tensors."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers_model import transformers_model

from quire.testing.checkpoints import write_tokenizer

VOCAB_SIZE = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "sliding_window": 7,
    "attention_chunk_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # experts
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # latent attention
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    # OPT
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
}
LATENT = {"head_dim": 8, "num_key_value_heads": 4}  # transformers rotates 8 elements of each head
SOFT_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "rope_theta": 10000.0}  # fmt: skip
# Model type -> values that differ from the defaults and from `SIZES`.
FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {},
    "apertus": {"rope_parameters": YARN},
    "arcee": {},
    "aria_text": {},
    "beam": {},
    "biogpt": {},
    "bitnet": {},
    "cohere": {},
    "cohere2": {},
    "cohere2_moe": {},
    "ctrl": {},
    "cwm": {},
    "deepseek_v2": {**LATENT, "topk_method": "group_limited_greedy"},
    "deepseek_v3": LATENT,
    "dots1": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "exaone4": {},
    "exaone_moe": {},
    "flex_olmo": {},
    "flint": {},
    "gemma": {},
    "gemma2": SOFT_CAPS,
    "gemma3_text": {},
    "gemma4_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0},
    "glm": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": LATENT,
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gpt_oss": {"rope_parameters": YARN},
    "granite": {"attention_multiplier": 0.3, "logits_scaling": 1.5, "residual_multiplier": 0.7},
    "granite_swa": {},
    "granitemoe": {},
    "granitemoe_swa": {},
    "granitemoeshared": {},
    "helium": {"head_dim": 16},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {},
    "hy_v3": {},
    "hyperclovax": {},
    "internlm3": {},
    "iquestcoder": {},
    "jais2": {},
    "kolibri1": {},
    "laguna": {},
    "llama": {"rope_parameters": YARN},
    "llama4_text": {"attn_temperature_tuning": False},
    "mellum": {},
    "mimo_v2_flash": {},
    "minicpm3": LATENT,
    "minimax_m2": {},
    "minimax_m3_vl_text": {},
    "ministral": {},
    "ministral3": {},
    "mistral": {},
    "mixtral": {},
    "nanochat": {},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": {},
    "opt": {},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": {},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
    "seed_oss": {},
    "smollm3": {},
    "solar_open": {},
    "stablelm": {},
    "starcoder2": {},
    "vaultgemma": SOFT_CAPS,
}


@dataclass(frozen=True)
class Family:
    """A checkpoint of one family, and transformers' eager model of it."""

    folder: Path
    reference: Any

    @property
    def architecture(self) -> str:
        name: str = type(self.reference).__name__
        return name

    def logprobs(self, token_ids: Sequence[int]) -> Tensor:  # [T, V]
        """Return the log probabilities after each token, by transformers."""
        with torch.inference_mode():
            logits = self.reference(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        found: Tensor = logits.float().log_softmax(-1)
        return found


def tiny_config(model_type: str, **values: Any) -> Any:
    """Return a small config of a model type."""
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    known = set(config_class().to_dict())
    names = {name: config_class.attribute_map.get(name, name) for name in SIZES}
    sizes = {name: value for name, value in SIZES.items() if {name, names[name]} & known}
    return config_class(**{**sizes, "pad_token_id": None, **values})


def write_family(
    folder: Path, model_type: str, *, dtype: torch.dtype = torch.float32, **values: Any
) -> Family:
    """Write a checkpoint in which every parameter and every persistent buffer is random."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(model_type, **{**FAMILIES.get(model_type, {}), **values})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    _randomise(model)
    model.to(dtype).save_pretrained(folder)
    write_tokenizer(folder, VOCAB_SIZE)
    if dtype is not torch.float32:  # rotary embeddings are rounded as well
        model = transformers_model(folder, attn_implementation="eager")
    gc.freeze()
    return Family(folder, model)


@torch.no_grad()
def _randomise(model: Any) -> None:
    """Fill a model; layers outweigh the embedding and biases, so that greedy output varies."""
    generator = torch.Generator().manual_seed(3)
    for name, tensor in model.state_dict(keep_vars=True).items():
        values = torch.randn(tensor.shape, generator=generator)
        is_norm = "norm" in name or ".ln_" in name or "layernorm" in name
        if not tensor.is_floating_point():
            continue
        if is_norm and name.endswith("weight"):
            values = values * 0.2 + 1.0
        elif tensor.dim() > 1:
            values = values * 4.0 * tensor.shape[-1] ** -0.5
        else:
            values = values * 0.1
        tensor.copy_(values)
    embedding = model.get_input_embeddings().weight
    embedding.copy_(torch.randn(embedding.shape, generator=generator) * 0.1)
