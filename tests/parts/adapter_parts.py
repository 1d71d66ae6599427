"""Adapters written by peft itself, with every matrix random, for a tiny checkpoint."""

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers_model import transformers_model

from quire.testing.checkpoints import WrittenCheckpoint

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def peft_model(written: WrittenCheckpoint, name: str, **options: Any) -> Any:
    """The checkpoint in transformers, with one random adapter of peft."""
    return adapted(transformers_model(written.folder), name, **options)


def adapted(base: Any, name: str, **options: Any) -> Any:
    """Return a model of transformers with one random adapter of peft."""
    from peft import get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft calls what transformers deprecates
        model = get_peft_model(base, _config(options), adapter_name=name).eval()
    randomise(model, name)
    return model


def add_adapter(model: Any, name: str, **options: Any) -> None:
    model.add_adapter(name, _config(options))
    randomise(model, name)


def randomise(model: Any, name: str) -> None:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    for key, parameter in model.named_parameters():
        if f".{name}." in key and "lora_" in key:
            values = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(values * 0.5 * parameter.shape[-1] ** -0.5)


def save_adapter(model: Any, name: str, folder: Path) -> Path:
    """Save one adapter as peft does, and return its folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, selected_adapters=[name])
    return folder / name if name != "default" else folder


def peft_logits(model: Any, name: str, token_ids: torch.Tensor) -> torch.Tensor:
    model.set_adapter(name)
    with torch.inference_mode():
        logits: torch.Tensor = model(token_ids.unsqueeze(0)).logits[0]
    return logits


def _config(options: dict[str, Any]) -> Any:
    from peft import LoraConfig

    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": list(LINEARS), **options})
