"""Shapes of other families than Qwen3, as in a config.json, and their random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAMILY_SHAPES: dict[str, dict[str, Any]] = {
    "moe-1b": {  # 985 million parameters, 155 million of them active beside the embedding
        "model_type": "qwen3_moe",
        "vocab_size": 32_000,
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 1152,
        "norm_topk_prob": True,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "gemma2-0.5b": {  # 513 million parameters, half of them the embedding
        "model_type": "gemma2",
        "vocab_size": 256_000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "query_pre_attn_scalar": 128,
        "sliding_window": 512,
        "max_position_embeddings": 4096,
    },
    "phi3-0.5b": {  # 495 million parameters
        "model_type": "phi3",
        "vocab_size": 32_064,
        "hidden_size": 1536,
        "intermediate_size": 4096,
        "num_hidden_layers": 14,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "max_position_embeddings": 4096,
    },
}


def write_family_shape(folder: Path, shape: str) -> None:
    """Write a checkpoint of a key of `FAMILY_SHAPES` with transformers; it loads torch.

    Matrices keep the size of what they multiply, so that greedy completions vary.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from quire.testing.checkpoints import write_tokenizer

    sizes = FAMILY_SHAPES[shape]
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = AutoConfig.for_model(**sizes, **special)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(0.0 if shape.startswith("gemma") else 1.0, 0.1)
            else:
                parameter.normal_(0.0, 1.0 if "embed" in name else parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder, sizes["vocab_size"])
