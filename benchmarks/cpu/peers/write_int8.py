"""A checkpoint whose linear layers multiply eight-bit integers, in compressed-tensors' format.

    PYTHON_WITH_TORCH write_int8.py CHECKPOINT TARGET

So vLLM has eight-bit weights, too. Each output of a layer has a scale, its row's largest magnitude
divided by 127; inputs are quantized by the engine, each token by its own scale. Embedding and LM
head keep their type, as in the checkpoints that vLLM's tools write.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

LARGEST = 127
COMMON = {"num_bits": 8, "type": "int", "symmetric": True}
QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**COMMON, "strategy": "channel", "dynamic": False},
            "input_activations": {**COMMON, "strategy": "token", "dynamic": True},
        }
    },
}


def main() -> None:
    """Write the folder."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir()
    for path in source.glob("tokenizer*"):
        shutil.copy(path, target)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION
    (target / "config.json").write_text(json.dumps(config, indent=1))
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if is_linear(name):
            tensors[name], tensors[f"{name}_scale"] = quantized(tensor)
        else:
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


def is_linear(name: str) -> bool:
    """Return whether a tensor is the weight of a linear layer inside the model."""
    return name.endswith("_proj.weight")


def quantized(
    weight: torch.Tensor,  # [out, in]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes and the scales [out, 1]."""
    weight = weight.float()
    scales = (weight.abs().amax(1, keepdim=True) / LARGEST).clamp_min(torch.finfo().tiny)
    codes = (weight / scales).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    return codes, scales


if __name__ == "__main__":
    main()
