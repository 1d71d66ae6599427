"""Tiny checkpoints of every family, written by transformers with random weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.testing.checkpoints import write_tokenizer

VOCAB_SIZE = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True, slots=True)
class FamilyCase:
    """A shape of a family.

    Attributes:
        model_type: Name of the config in transformers.
        options: Values of the config beside the sizes; MISSING takes a size away.
        embedding_gain: Size of the embeddings; the larger, the more tokens are generated.
        attention: Implementation in transformers. The eager one of Falcon adds its biases twice.
    """

    model_type: str
    options: dict[str, Any]
    embedding_gain: float = 1.5
    attention: str = "eager"


@dataclass(frozen=True, slots=True)
class FamilyCheckpoint:
    """A checkpoint on disk, and transformers' model of it."""

    folder: Path
    config: dict[str, Any]
    theirs: Any

    def logits(self, token_ids: Tensor) -> Tensor:
        """Return transformers' logits of each token of a prompt, `[T, V]`."""
        with torch.inference_mode():
            found: Tensor = self.theirs(token_ids.unsqueeze(0), use_cache=False).logits[0]
        return found.float()


def write_family(folder: Path, case: FamilyCase, seed: int = 0) -> FamilyCheckpoint:
    """Write a checkpoint of a family, in the names that its publishers use."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {key: value for key, value in SIZES.items() if key not in case.options}
    options = {key: value for key, value in case.options.items() if value is not MISSING}
    config = AutoConfig.for_model(case.model_type, **sizes, **options)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=case.attention
    )
    fill(model, seed, case.embedding_gain)
    model = model.eval()
    model.save_pretrained(folder)
    write_tokenizer(folder, VOCAB_SIZE)
    return FamilyCheckpoint(folder, json.loads((folder / "config.json").read_text()), model)


MISSING = object()


@torch.no_grad()
def fill(model: Any, seed: int, embedding_gain: float) -> None:
    """Fill every parameter with random numbers: norms around one, all else around zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1 and "norm" not in name:
            is_embedding = "embed" in name or name.endswith(("wte.weight", "wpe.weight"))
            values *= (embedding_gain if is_embedding else 2.5) * parameter.shape[-1] ** -0.5
        elif "norm" in name or "ln_" in name or "layernorm" in name:
            values = values * 0.3 + ("bias" not in name)
        else:
            values *= 0.3
        parameter.copy_(values)
    for name, buffer in model.named_buffers():
        if "correction_bias" in name:
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
        if "layer_scalar" in name:
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
