"""Checkpoints in the layout of Hugging Face, written as GGUF files with what llama.cpp expects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf_files import write_gguf
from safetensors.torch import load_file
from torch import Tensor

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

Store = Callable[[str, Tensor], Any]


def plain(name: str, tensor: Tensor) -> np.ndarray:
    """Return the numbers, to be stored as F32."""
    del name
    return tensor.float().numpy()


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    stem, _, parameter = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[inner]}.{parameter}"
    return f"{NAMES[stem]}.{parameter}"


def rotary_pairs(tensor: Tensor, head_dim: int) -> Tensor:
    """Return the rows of each head in the order of llama.cpp: 0, D / 2, 1, D / 2 + 1, ..."""
    order = [i + half for i in range(head_dim // 2) for half in (0, head_dim // 2)]
    return torch.cat([head[order] for head in tensor.split(head_dim)])


def model_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a model's config."""
    name = config["model_type"]
    return {
        "general.architecture": name,
        f"{name}.block_count": config["num_hidden_layers"],
        f"{name}.context_length": config["max_position_embeddings"],
        f"{name}.embedding_length": config["hidden_size"],
        f"{name}.feed_forward_length": config["intermediate_size"],
        f"{name}.attention.head_count": config["num_attention_heads"],
        f"{name}.attention.head_count_kv": config["num_key_value_heads"],
        f"{name}.attention.key_length": config["head_dim"],
        f"{name}.attention.value_length": config["head_dim"],
        f"{name}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{name}.rope.freq_base": float(config["rope_theta"]),
        f"{name}.rope.dimension_count": config["head_dim"],
        f"{name}.vocab_size": config["vocab_size"],
    }


def model_tensors(
    weights: Mapping[str, Tensor], config: Mapping[str, Any], store: Store = plain
) -> dict[str, Any]:
    """Return the tensors of a model, in llama.cpp's order of rows."""
    tensors = {}
    for name, tensor in weights.items():
        is_rotated = name.rpartition(".")[0].endswith(("q_proj", "k_proj"))
        if is_rotated and config["model_type"] == "llama":
            tensor = rotary_pairs(tensor, config["head_dim"])
        new = gguf_name(name)
        tensors[new] = store(new, tensor) if tensor.dim() > 1 else plain(new, tensor)
    return tensors


def byte_level_metadata(folder: Path, pre: str, size: int) -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer in a folder, with unused tokens at the end."""
    spec = json.loads((folder / "tokenizer.json").read_text())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    tokens = [f"[PAD{i}]" for i in range(size)]
    types = [UNUSED] * size
    for token, i in spec["model"]["vocab"].items():
        tokens[i], types[i] = token, NORMAL
    for added in spec["added_tokens"]:
        i = added["id"]
        tokens[i], types[i] = added["content"], CONTROL if added["special"] else USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    ids = {token: i for i, token in enumerate(tokens)}
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }
    template = folder / "chat_template.jinja"
    text = template.read_text() if template.is_file() else config.get("chat_template")
    if text is not None:
        metadata["tokenizer.chat_template"] = text
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")):
        if config.get(name) in ids:
            metadata[f"tokenizer.ggml.{key}_token_id"] = ids[config[name]]
    return metadata


def folder_as_gguf(
    folder: Path, file: Path, *, pre: str = "qwen2", store: Store = plain, **extra: Any
) -> Path:
    """Write the checkpoint in a folder as a GGUF file, and return its path."""
    config = json.loads((folder / "config.json").read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config.setdefault("rope_theta", (config.get("rope_parameters") or {}).get("rope_theta"))
    weights = load_file(folder / "model.safetensors")
    metadata = model_metadata(config) | byte_level_metadata(folder, pre, config["vocab_size"])
    return write_gguf(file, metadata | extra, model_tensors(weights, config, store))
