"""Tiny random checkpoints that transformers writes, and its model of them: the reference.

Every parameter and every stored buffer is random, norms and biases too.
"""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.testing.checkpoints import write_tokenizer

EMBEDDING_GAIN = 1.5


@dataclass(frozen=True, slots=True)
class TransformersCheckpoint:
    """A checkpoint on disk, and transformers' model of it.

    Attributes:
        folder: Path of the folder.
        config: Content of config.json.
        theirs: Model of transformers, float32.
        logit_factor: Factor of its logits, for models whose quirk quire does not have.
    """

    folder: Path
    config: dict[str, Any]
    theirs: Any
    logit_factor: float = 1.0

    def logits(self, token_ids: Tensor) -> Tensor:
        """Return transformers' logits of each token of a prompt, `[T, V]`."""
        with torch.inference_mode():
            found: Tensor = self.theirs(token_ids.unsqueeze(0), use_cache=False).logits[0]
        return found.float() * self.logit_factor


def write_transformers_checkpoint(
    folder: Path,
    config: Any,
    *,
    seed: int = 0,
    embedding_gain: float = EMBEDDING_GAIN,
    attention: str = "eager",
) -> TransformersCheckpoint:
    """Write a random checkpoint of a causal language model, in the names of its publishers.

    Args:
        folder: Path of the folder.
        config: Config of transformers, such as `AutoConfig.for_model(...)`.
        seed: Seed of the weights.
        embedding_gain: Size of the embeddings; the larger, the more tokens are generated.
        attention: Attention implementation of the reference.
    """
    from transformers import AutoModelForCausalLM  # a heavy import

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention
    )
    return write_model(folder, model, seed=seed, embedding_gain=embedding_gain)


def write_model(
    folder: Path, model: Any, *, seed: int = 0, embedding_gain: float = EMBEDDING_GAIN
) -> TransformersCheckpoint:
    """Fill a model of transformers with random numbers, and write its checkpoint."""
    _fill(model, seed, embedding_gain)
    model = model.eval()
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_tokenizer(folder, model.get_input_embeddings().num_embeddings)
    gc.freeze()  # engines collect garbage, and a million objects of transformers are none
    return TransformersCheckpoint(folder, config, model)


@torch.no_grad()
def _fill(model: Any, seed: int, embedding_gain: float) -> None:
    """Fill all that is stored with random numbers: norms around one, biases around zero."""
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
    stored = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name not in stored or not buffer.is_floating_point():
            continue  # computed from the config, such as frequencies and masks
        if "bias" in name:
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
        else:
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
