"""Shapes of known models, for benchmarks with random weights."""

import json
from pathlib import Path
from typing import Any

_COMMON = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
}
SHAPES: dict[str, dict[str, Any]] = {
    "5m": {
        "vocab_size": 8192,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "rope_theta": 10_000.0,
    },
    "qwen3-0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000.0,
    },
    "llama-3.2-1b": _LLAMA
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
    },
    "llama-3.1-8b": _LLAMA
    | {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
    },
    "qwen3-8b": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
    },
}


def write_shape(folder: Path, shape: str) -> None:
    """Write a checkpoint without weights; `load_format=dummy` makes random ones.

    Raises:
        KeyError: There is no such shape.
    """
    from quire.testing.checkpoints import write_tokenizer  # loads torch

    config: dict[str, Any] = _COMMON | SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tokenizer(folder, config["vocab_size"])
