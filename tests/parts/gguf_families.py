"""Tiny checkpoints of transformers as GGUF files of many architectures, as llama.cpp writes them.

Names of tensors come from llama.cpp's own `gguf` package. What its converter changes besides is
written down here: rows in rotary pairs, norms plus one, stacks of experts, and metadata.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from family_cases import FULL, GEMMA4_SMALL, SLIDING, YARN, longrope, partial
from family_checkpoints import FamilyCase, write_family
from gguf_checkpoints import plain, rotary_pairs
from gguf_files import write_gguf
from safetensors.torch import load_file
from torch import Tensor

from quire.testing.model.transformers_checkpoint import TransformersCheckpoint

KEYS = {  # of all architectures that have the value
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": ("attention.key_length", "attention.value_length"),
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_epsilon",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "moe_num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_k": "expert_used_count",
    "moe_topk": "expert_used_count",
    "moe_num_shared_experts": "expert_shared_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "logit_scale": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "use_parallel_residual": "use_parallel_residual",
}
EXPERT = re.compile(r"model\.layers\.(\d+)\..+\.experts\.(\d+)\.(\w+)\.weight")
HEAD_NORM = re.compile(r"(model\.layers\.\d+\.self_attn\.[qk]_layernorm)\.norms\.(\d+)\.weight")
EXPERT_PARTS = {"w1": "gate", "w2": "down", "w3": "up"}
SUFFIXES = (".weight", ".bias")

Named = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class GgufCase:
    """An architecture of GGUF, with a model of transformers that it can say everything of.

    Attributes:
        name: Name of the architecture.
        case: Model of transformers.
        more: Further metadata.
        is_paired: Whether rows of queries and keys are written in rotary pairs.
        shift: Number that is added to the weights of norms.
        change: Further changes of tensors: from a name and a tensor to those in the file.
    """

    name: str
    case: FamilyCase
    more: Mapping[str, Any] = field(default_factory=dict)
    is_paired: bool = False
    shift: float = 0.0
    change: Callable[[str, Tensor], Named] | None = None


def write_case(
    folder: Path, given: GgufCase, **options: Any
) -> tuple[Path, TransformersCheckpoint]:
    """Write a model as transformers and as llama.cpp write it."""
    written = write_family(folder / "hf", given.case)
    metadata = metadata_of(given, written.config)
    tensors = tensors_of(given, written, **options)
    return write_gguf(folder / "model.gguf", metadata, tensors), written


def metadata_of(given: GgufCase, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a model."""
    rope = config.get("rope_parameters") or {}
    rope = {**rope, **rope.get(FULL, {})}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    found: dict[str, Any] = {
        "rope.freq_base": float(rope.get("rope_theta", 10000.0)),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }
    for key, theirs in KEYS.items():
        if config.get(key) is not None:
            for each in (theirs,) if isinstance(theirs, str) else theirs:
                found[each] = config[key]
    kind = rope.get("rope_type")
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if original := rope.get("original_max_position_embeddings"):
        found["rope.scaling.original_context_length"] = original
    return {
        "general.architecture": given.name,
        "general.type": "model",
        **{f"{given.name}.{key}": value for key, value in (found | given.more).items()},
    }


def tensors_of(
    given: GgufCase, written: TransformersCheckpoint, store: Callable[[str, Tensor], Any] = plain
) -> dict[str, Any]:
    """Return the tensors of a model, as the converter of llama.cpp writes them."""
    gguf = import_module("gguf")
    number = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == given.name)
    names = gguf.get_tensor_name_map(number, written.config["num_hidden_layers"])
    weights = load_file(written.folder / "model.safetensors")
    config, tensors = written.config, {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for name, tensor in stacked(weights.items()):
        changed = [(name, tensor)] if given.change is None else given.change(name, tensor)
        for each, value in changed:
            new = each if each.startswith("blk.") else names.get_name(each, SUFFIXES)
            assert new is not None, each
            if given.is_paired and re.search(r"attn_[qk]\.", new):
                value = rotary_pairs(value, head_dim)
            if new.endswith("norm.weight"):
                value = value + given.shift
            tensors[new] = store(new, value) if value.dim() > 1 else plain(new, value)
    return tensors


def stacked(weights: Any) -> Named:
    """Yield tensors, those of several experts or heads as one."""
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in weights:
        if match := EXPERT.fullmatch(name):
            layer, index, part = match.groups()
            part = EXPERT_PARTS.get(part, part.removesuffix("_proj"))
            stacks.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(index)] = tensor
        elif match := HEAD_NORM.fullmatch(name):
            stacks.setdefault(f"{match[1]}.weight", {})[int(match[2])] = tensor
        else:
            yield name, tensor
    for name, entries in stacks.items():
        yield name, torch.stack([entries[index] for index in range(len(entries))])


def without_head(name: str, tensor: Tensor) -> Named:
    """Leave out a head that is the embedding, too."""
    if name != "lm_head.weight":
        yield name, tensor


def gate_of_shared(name: str, tensor: Tensor) -> Named:
    """Write the gate of the shared expert as a vector."""
    yield name, tensor.squeeze(0) if "shared_expert_gate" in name else tensor


def granite_experts(name: str, tensor: Tensor) -> Named:
    """Divide the fused inputs of experts."""
    if name.endswith("input_linear.weight"):
        layer = name.split(".")[2]
        kind = "exps" if tensor.dim() == 3 else "shexp"
        for part, half in zip(("gate", "up"), tensor.chunk(2, -2), strict=True):
            yield f"blk.{layer}.ffn_{part}_{kind}.weight", half
    elif name.endswith("block_sparse_moe.output_linear.weight"):
        yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", tensor
    else:
        yield name, tensor


def gpt_oss_experts(name: str, tensor: Tensor) -> Named:
    """Divide the alternating inputs of experts, and write matrices with their outputs as rows."""
    layer, _, last = name.rpartition(".")
    stem = f"blk.{name.split('.')[2] if layer.startswith('model.layers') else ''}"
    if "mlp.experts" in name:
        kind = "bias" if last.endswith("_bias") else "weight"
        turned = tensor.transpose(-1, -2) if kind == "weight" else tensor
        dim = -2 if kind == "weight" else -1
        if last.startswith("down"):
            yield f"{stem}.ffn_down_exps.{kind}", turned
        else:
            for start, part in enumerate(("gate", "up")):
                index = torch.arange(start, turned.shape[dim], 2)
                yield f"{stem}.ffn_{part}_exps.{kind}", turned.index_select(dim, index)
    elif last == "sinks":
        yield f"{stem}.attn_sinks.weight", tensor
    else:
        yield name, tensor


def choice_bias(name: str, tensor: Tensor) -> Named:
    """Write the bias of the choice under its own name."""
    if name.endswith("e_score_correction_bias"):
        yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", tensor.squeeze()
    else:
        yield name, tensor


def gemma4_tensors(name: str, tensor: Tensor) -> Named:
    """Write factors of the router under their own names, and which wavelengths are rotated."""
    layer = name.split(".")[2] if name.startswith("model.layers.") else ""
    if name.endswith("router.scale"):
        yield f"blk.{layer}.ffn_gate_inp.scale", tensor
    elif name.endswith("per_expert_scale"):
        yield f"blk.{layer}.ffn_down_exps.scale", tensor
    elif name.endswith("layer_scalar") or ".experts." in name:
        yield f"{name}.weight", tensor
    elif name != "lm_head.weight":
        yield name, tensor
    if name == "model.embed_tokens.weight":
        yield "rope_freqs.weight", torch.tensor([1.0] * 4 + [1e30] * 12)


def latent_parts(name: str, tensor: Tensor) -> Named:
    """Write the keys of latent attention, turned, and its values as stacks of the heads."""
    if name.endswith("kv_b_proj.weight"):
        stem = f"blk.{name.split('.')[2]}"
        keys, values = tensor.view(4, -1, tensor.shape[1]).split([32, 24], 1)
        yield f"{stem}.attn_k_b.weight", keys.transpose(1, 2)
        yield f"{stem}.attn_v_b.weight", values
    else:
        yield from choice_bias(name, tensor)


def phi3_factors(name: str, tensor: Tensor) -> Named:
    """Write the factors of wavelengths beside the embedding."""
    yield name, tensor
    if name == "model.embed_tokens.weight":
        rope = longrope(8)
        yield "rope_factors_long.weight", torch.tensor(rope["long_factor"])
        yield "rope_factors_short.weight", torch.tensor(rope["short_factor"])


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
EXPERTS_OF_OLMO = {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}
FACTORS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.5,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
}
GEMMA3_ROPES = {
    FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
SIGMOID = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
WINDOW = {"attention.sliding_window": 9}
DOTS1 = SIGMOID | {"n_shared_experts": 2, "sliding_window": None, "num_key_value_heads": 4}
GEMMA4 = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 9}
GEMMA4_KEYS = WINDOW | {
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "rope.freq_base": 1_000_000.0,
    "rope.freq_base_swa": 10_000.0,
    "rope.dimension_count": 32,
    "rope.dimension_count_swa": 16,
}
LATENT = {
    "q_lora_rank": 28,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
LATENT_KEYS = {
    "attention.kv_lora_rank": 32,
    "attention.head_count_kv": 1,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 40,
    "attention.value_length_mla": 24,
    "rope.dimension_count": 8,
}
IMAGES = {"rope.dimension_sections": [4, 2, 2, 0], "n_deepstack_layers": 3}

CASES = {
    "llama": GgufCase("llama", FamilyCase("llama", {"head_dim": 24}), is_paired=True),
    "mixtral": GgufCase("llama", FamilyCase("mixtral", {"num_local_experts": 4}), is_paired=True),
    "qwen2moe": GgufCase(
        "qwen2moe",
        FamilyCase("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 40}),
        change=gate_of_shared,
    ),
    "qwen3moe": GgufCase(
        "qwen3moe",
        FamilyCase("qwen3_moe", EXPERTS | {"norm_topk_prob": True, "head_dim": 24}),
    ),
    "qwen2vl": GgufCase("qwen2vl", FamilyCase("qwen2", {}), IMAGES),
    "qwen3vl": GgufCase("qwen3vl", FamilyCase("qwen3", {"head_dim": 16}), IMAGES),
    "qwen3vlmoe": GgufCase(
        "qwen3vlmoe",
        FamilyCase("qwen3_moe", EXPERTS | {"norm_topk_prob": True, "head_dim": 16}),
        IMAGES,
    ),
    "mistral3": GgufCase(
        "mistral3", FamilyCase("mistral", {"sliding_window": None}), is_paired=True
    ),
    "ministral3": GgufCase(
        "mistral3",
        FamilyCase(
            "ministral3",
            {
                "rope_parameters": {
                    **YARN,
                    "llama_4_scaling_beta": 0.3,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                },
            },
        ),
        {"attention.temperature_scale": 0.3, "rope.scaling.yarn_log_multiplier": 1.0},
        is_paired=True,
    ),
    "phimoe": GgufCase(
        "phimoe",
        FamilyCase(
            "phimoe",
            {
                "num_local_experts": 4,
                "attention_bias": True,
                "lm_head_bias": True,
                "sliding_window": None,
                "rope_parameters": partial(1.0),
            },
        ),
        {"attention.sliding_window": 0},
    ),
    "phi2": GgufCase("phi2", FamilyCase("phi", {})),
    "deepseek2": GgufCase(
        "deepseek2",
        FamilyCase("deepseek_v2", LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1}),
        LATENT_KEYS | {"expert_weights_norm": False},
        change=latent_parts,
    ),
    "deepseek2 groups": GgufCase(
        "deepseek2",
        FamilyCase(
            "deepseek_v2",
            LATENT
            | {
                "n_group": 4,
                "topk_group": 2,
                "topk_method": "group_limited_greedy",
                "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7},
            },
        ),
        LATENT_KEYS
        | {
            "attention.q_lora_rank": 28,
            "expert_gating_func": 1,
            "rope.scaling.yarn_log_multiplier": 0.07,
        },
        change=latent_parts,
    ),
    "deepseek3": GgufCase(
        "deepseek2",
        FamilyCase("deepseek_v3", LATENT | {"n_group": 4, "topk_group": 2}),
        LATENT_KEYS
        | {"attention.q_lora_rank": 28, "expert_gating_func": 2, "expert_weights_norm": True},
        change=latent_parts,
    ),
    "deepseek3 whole": GgufCase(
        "deepseek2",
        FamilyCase("deepseek_v3", LATENT | {"n_group": 1, "topk_group": 1}),
        {
            "attention.q_lora_rank": 28,
            "attention.kv_lora_rank": 32,
            "attention.key_length": 40,
            "attention.value_length": 24,
            "rope.dimension_count": 8,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
        },
        change=choice_bias,
    ),
    "dots1": GgufCase(
        "dots1",
        FamilyCase("dots1", DOTS1),
        {"expert_weights_norm": True, "expert_gating_func": 2},
        change=choice_bias,
    ),
    "minimax-m2": GgufCase(
        "minimax-m2",
        FamilyCase(
            "minimax_m2",
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "head_dim": 24,
                "rope_parameters": partial(0.5),
            },
        ),
        {"expert_feed_forward_length": 96, "expert_gating_func": 2},
        change=choice_bias,
    ),
    "ernie4_5-moe": GgufCase(
        "ernie4_5-moe",
        FamilyCase(
            "ernie4_5_moe",
            {
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_intermediate_size": 48,
                "moe_layer_start_index": 1,
                "moe_layer_end_index": 3,
            },
        ),
        {"expert_shared_feed_forward_length": 96},
        change=choice_bias,
    ),
    "hunyuan-moe": GgufCase(
        "hunyuan-moe",
        FamilyCase("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "head_dim": 16}),
        {"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 96},
    ),
    "gemma": GgufCase(
        "gemma", FamilyCase("gemma", {"head_dim": 24}), shift=1.0, change=without_head
    ),
    "gemma2": GgufCase(
        "gemma2",
        FamilyCase(
            "gemma2",
            {
                "head_dim": 24,
                "sliding_window": 9,
                "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 4.0,
            },
        ),
        WINDOW,
        shift=1.0,
        change=without_head,
    ),
    "gemma3": GgufCase(
        "gemma3",
        FamilyCase(
            "gemma3_text",
            {
                "head_dim": 24,
                "sliding_window": 9,
                "num_hidden_layers": 7,
                "query_pre_attn_scalar": 24,
                "rope_parameters": GEMMA3_ROPES,
            },
        ),
        WINDOW,
        shift=1.0,
        change=without_head,
    ),
    "gemma4": GgufCase(
        "gemma4",
        FamilyCase(
            "gemma4_text",
            GEMMA4
            | {
                "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0,
                "layer_types": [SLIDING, FULL] * 2,
                "final_logit_softcapping": 4.0,
            },
        ),
        GEMMA4_KEYS
        | {
            "embedding_length_per_layer_input": 0,
            "attention.shared_kv_layers": 0,
            "attention.sliding_window_pattern": [True, False] * 2,
        },
        change=gemma4_tensors,
    ),
    "gemma4 small": GgufCase(
        "gemma4",
        FamilyCase("gemma4_text", GEMMA4_SMALL),
        GEMMA4_KEYS
        | {
            "embedding_length_per_layer_input": 16,
            "attention.shared_kv_layers": 4,
            "attention.sliding_window_pattern": [
                each == SLIDING for each in GEMMA4_SMALL["layer_types"]
            ],
            "feed_forward_length": [96] * 4 + [192] * 4,
        },
        change=gemma4_tensors,
    ),
    "gemma4 experts": GgufCase(
        "gemma4",
        FamilyCase(
            "gemma4_text",
            GEMMA4
            | {
                "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": True,
                "layer_types": [FULL, SLIDING, SLIDING, FULL],
                "enable_moe_block": True,
                "num_experts": 4,
                "top_k_experts": 2,
                "moe_intermediate_size": 48,
            },
        ),
        GEMMA4_KEYS
        | {
            "embedding_length_per_layer_input": 0,
            "attention.shared_kv_layers": 0,
            "attention.sliding_window_pattern": [False, True, True, False],
            "attention.head_count_kv": [1, 2, 2, 1],
            "expert_used_count": 2,
        },
        change=gemma4_tensors,
    ),
    "phi3": GgufCase(
        "phi3",
        FamilyCase("phi3", {"rope_parameters": partial(0.75), "sliding_window": 12}),
        {"attention.sliding_window": 12},
    ),
    "phi3 part": GgufCase(
        "phi3",
        FamilyCase("phi3", {"rope_parameters": partial(0.75), "sliding_window": None}),
        {"attention.sliding_window": 0},
    ),
    "phi3 long": GgufCase(
        "phi3",
        FamilyCase(
            "phi3",
            {
                "rope_parameters": longrope(8),
                "original_max_position_embeddings": 16,
                "sliding_window": None,
            },
        ),
        {
            "attention.sliding_window": 0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(256 / 16) / math.log(16)),
        },
        change=phi3_factors,
    ),
    "gpt-oss": GgufCase(
        "gpt-oss",
        FamilyCase(
            "gpt_oss",
            {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "head_dim": 16,
                "sliding_window": 9,
                "rope_parameters": YARN | {"truncate": False},
            },
        ),
        WINDOW | {"expert_feed_forward_length": 96},
        change=gpt_oss_experts,
    ),
    "granite": GgufCase(
        "granite",
        FamilyCase("granite", FACTORS | {"attention_bias": True}),
        is_paired=True,
    ),
    "granitemoe": GgufCase(
        "granitemoe",
        FamilyCase("granitemoe", FACTORS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
        is_paired=True,
        change=granite_experts,
    ),
    "granitemoe shared": GgufCase(
        "granitemoe",
        FamilyCase(
            "granitemoeshared",
            FACTORS | {"num_local_experts": 4, "shared_intermediate_size": 40},
        ),
        is_paired=True,
        change=granite_experts,
    ),
    "smollm3": GgufCase(
        "smollm3", FamilyCase("smollm3", {"tie_word_embeddings": False}), is_paired=True
    ),
    "olmo2": GgufCase("olmo2", FamilyCase("olmo2", {})),
    "olmo3": GgufCase("olmo2", FamilyCase("olmo3", {"sliding_window": 9}), WINDOW),
    "olmoe": GgufCase("olmoe", FamilyCase("olmoe", EXPERTS_OF_OLMO)),
    "command-r": GgufCase("command-r", FamilyCase("cohere", {"logit_scale": 0.5})),
    "command-r norms": GgufCase(
        "command-r", FamilyCase("cohere", {"use_qk_norm": True, "logit_scale": 0.5})
    ),
    "cohere2": GgufCase(
        "cohere2",
        FamilyCase("cohere2", {"head_dim": 16, "sliding_window": 9, "logit_scale": 0.5}),
        WINDOW | {"rope.scaling.type": "none"},
    ),
    "starcoder2": GgufCase("starcoder2", FamilyCase("starcoder2", {"sliding_window": None})),
    "stablelm": GgufCase(
        "stablelm", FamilyCase("stablelm", {"use_qkv_bias": True, "use_parallel_residual": False})
    ),
    "stablelm norms": GgufCase(
        "stablelm",
        FamilyCase(
            "stablelm",
            {
                "qk_layernorm": True,
                "use_parallel_residual": True,
                "rope_parameters": partial(0.5),
            },
        ),
    ),
    "nemotron": GgufCase("nemotron", FamilyCase("nemotron", {"head_dim": 16}), shift=1.0),
    "arcee": GgufCase(
        "arcee", FamilyCase("arcee", {"head_dim": 16, "rope_parameters": YARN}), is_paired=True
    ),
    "seed_oss": GgufCase("seed_oss", FamilyCase("seed_oss", {"head_dim": 24})),
    "glm4": GgufCase("glm4", FamilyCase("glm4", {"head_dim": 16})),
    "glm4moe": GgufCase(
        "glm4moe",
        FamilyCase(
            "glm4_moe",
            SIGMOID | {"use_qk_norm": True, "attention_bias": True, "n_shared_experts": 2},
        ),
        {"expert_weights_norm": True, "expert_gating_func": 2},
        change=choice_bias,
    ),
    "ernie4_5": GgufCase("ernie4_5", FamilyCase("ernie4_5", {"head_dim": 24})),
    "exaone4": GgufCase(
        "exaone4",
        FamilyCase("exaone4", {"sliding_window": None, "layer_types": [FULL] * 4}),
    ),
    "exaone4 windows": GgufCase(
        "exaone4",
        FamilyCase("exaone4", {"sliding_window": 9, "sliding_window_pattern": 4}),
        WINDOW,
    ),
    "hunyuan-dense": GgufCase("hunyuan-dense", FamilyCase("hunyuan_v1_dense", {"head_dim": 24})),
}
