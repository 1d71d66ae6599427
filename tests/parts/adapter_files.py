"""Small adapters in peft's layout, written by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


def write_adapter(folder: Path, tensors: Mapping[str, Tensor] | None = None, **config: Any) -> Path:
    """Write an adapter of rank 2 on one layer of a tiny checkpoint; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    pair = {
        f"{Q_PROJ}.lora_A.weight": torch.ones(2, 64),
        f"{Q_PROJ}.lora_B.weight": torch.ones(64, 2),
    }
    save_file(dict(pair if tensors is None else tensors), folder / "adapter_model.safetensors")
    return folder
