"""Tiny checkpoints in which every parameter is random, so that tests detect wrong computations.

Zero biases, norm weights of one and a model that repeats one token would hide mistakes. Here biases
are not zero, norm weights vary around one, and logits vary enough for greedy output to vary. The
files are written with torch and safetensors alone, in the Hugging Face layout, and transformers can
read them as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

LAYOUTS = ("llama", "qwen2", "qwen3", "gemma3")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_ARCHITECTURES = {f"{name.title()}ForCausalLM": name for name in LAYOUTS}
_SIZES: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "bos_token_id": None,
    "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
    "pad_token_id": 0,
}
# Values of a layout that add to `_SIZES` or replace them.
_LAYOUT_SIZES: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "rope_theta": 100_000.0,
        "rope_local_base_freq": 1_000.0,
        "query_pre_attn_scalar": 24,
        "sliding_window": 20,
        "sliding_window_pattern": 3,
    }
}


_LAYER_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint on disk, with its config and weights.

    Attributes:
        folder: Path of the folder with config.json, model.safetensors, tokenizer.json and
            tokenizer_config.json.
        config: Content of config.json.
        weights: Tensors by name.
    """

    folder: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]

    @property
    def num_params(self) -> int:
        """Number of elements in all tensors."""
        return sum(tensor.numel() for tensor in self.weights.values())


def write_checkpoint(
    folder: Path,
    architecture: str,
    *,
    seed: int = 0,
    layout: str | None = None,
    num_shards: int = 1,
    **config: Any,
) -> WrittenCheckpoint:
    """Write a tiny random checkpoint with a byte-level tokenizer and a ChatML chat template.

    Args:
        folder: Path of the folder; it is created if missing.
        architecture: Architecture in config.json, `LlamaForCausalLM` for example.
        seed: Seed of the weights; the same seed gives the same file.
        layout: Names and shapes of the tensors: `llama`, `qwen2`, `qwen3` or `gemma3`. The default
            is that of the architecture; required for a third-party architecture.
        num_shards: Number of weight files; with more than one an index is written too.
        **config: Values of config.json that replace the defaults.

    Raises:
        ValueError: The layout is unknown, or the vocabulary is too small for the tokenizer.
    """
    layout = layout or _ARCHITECTURES.get(architecture)
    if layout not in LAYOUTS:
        raise ValueError(
            f"layout for {architecture} must be one of {', '.join(LAYOUTS)}, got {layout!r}"
        )
    sizes = {"model_type": layout, **_SIZES, **_LAYOUT_SIZES.get(layout, {})}
    values = {"architectures": [architecture], **sizes, **config}
    values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    folder.mkdir(parents=True, exist_ok=True)
    weights = _random_weights(layout, values, seed)
    _write_json(folder / "config.json", values)
    _write_weights(folder, weights, num_shards)
    write_tokenizer(folder, values["vocab_size"])
    return WrittenCheckpoint(folder, values, weights)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write a tokenizer of all bytes, a few special tokens and unused tokens.

    Raises:
        ValueError: `vocab_size` is too small for all bytes.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be at least {MIN_VOCAB_SIZE}, got {vocab_size}")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    unused = [f"<|unused{number}|>" for number in range(vocab_size - MIN_VOCAB_SIZE)]
    vocabulary = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *alphabet, *unused))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )


def tensor_shapes(layout: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensor shapes of a checkpoint by name, for a layout and its config.json."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in _layer_shapes(layout, config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    return shapes


def _layer_shapes(layout: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width, head_dim = (
        config[key] for key in ("hidden_size", "intermediate_size", "head_dim")
    )
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    attention_bias = bool(config.get("attention_bias", False))
    qkv_bias = attention_bias or layout == "qwen2"
    mlp_bias = bool(config.get("mlp_bias", False))
    linears = (
        ("self_attn.q_proj", queries, hidden, qkv_bias),
        ("self_attn.k_proj", keys, hidden, qkv_bias),
        ("self_attn.v_proj", keys, hidden, qkv_bias),
        ("self_attn.o_proj", hidden, queries, attention_bias),
        ("mlp.gate_proj", width, hidden, mlp_bias),
        ("mlp.up_proj", width, hidden, mlp_bias),
        ("mlp.down_proj", hidden, width, mlp_bias),
    )
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rows, columns, has_bias in linears:
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    for name in _LAYER_NORMS[: 4 if layout == "gemma3" else 2]:
        shapes[f"{name}.weight"] = (hidden,)
    if layout in ("qwen3", "gemma3"):
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (head_dim,)
    return shapes


def _random_weights(layout: str, config: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = tensor_shapes(layout, config)
    weights = {name: _random(name, shape, generator) for name, shape in shapes.items()}
    if layout == "gemma3":
        weights |= {name: _from_one(name, weights[name]) for name in weights if "norm" in name}
    if config["tie_word_embeddings"]:
        # As an LM head, a larger embedding would predict its own token again, and output repeat.
        size = 0.3 if layout == "gemma3" else 1.6  # Gemma scales the input up again
        weights["model.embed_tokens.weight"] *= size * config["hidden_size"] ** -0.5
    return weights


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return norm weights around one, biases off zero, or matrices that preserve the scale."""
    values: Tensor = torch.randn(shape, generator=generator)
    if "q_norm" in name or "k_norm" in name:
        values = values * 0.3 + 1.7  # as in trained models: attention is not uniform
    elif "norm" in name:
        values = values * 0.2 + 1.0
    elif name.endswith(".bias"):
        values = values * 0.3
    elif "embed_tokens" not in name:
        values = values * (2.2 * shape[-1] ** -0.5)
    return values


def _from_one(name: str, weight: Tensor) -> Tensor:
    """Return a norm weight minus one; those after a block are large, to outweigh the input."""
    return weight * (3.0 if ".post_" in name else 1.0) - 1.0


def _write_weights(folder: Path, weights: Mapping[str, Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        names = sorted(weights)[shard::num_shards]
        save_file({name: weights[name] for name in names}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(names, file))
    total = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(folder / "model.safetensors.index.json", index)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
