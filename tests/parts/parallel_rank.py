"""One rank of a tensor-parallel group: computes the logits of many checkpoints, and saves them.

python parallel_rank.py ADDRESS RANK SIZE OUTPUT CHECKPOINT... ; a checkpoint's folder may have an
adapter in `adapter/`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from model_parts import logits_of, make_model, random_tokens
from safetensors.torch import save_file
from torch import Tensor

from quire.layers import TensorParallelGroup
from quire.messages import AdapterRef
from quire.worker.device.distributed_group import join_group, leave_group
from quire.worker.loading.weight_loading import init_dummy_weights, load_weights
from quire.worker.lora.adapter_manager import AdapterManager
from quire_lora.peft_source import PeftSource

TOKENS = random_tokens(24)


@dataclass
class Arguments:
    address: Path
    rank: int
    size: int
    output: Path
    checkpoints: list[Path]


def main(arguments: Arguments) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    group = join_group(arguments.address, arguments.rank, arguments.size, device)
    logits: dict[str, Tensor] = {}
    for folder in arguments.checkpoints:
        logits.update(compute(folder, group))
    save_file(logits, arguments.output)
    leave_group(group)


def compute(folder: Path, group: TensorParallelGroup) -> dict[str, Tensor]:
    """Logits of one checkpoint without and, if there is one, with an adapter; a dummy norm."""
    config = json.loads((folder / "config.json").read_text())
    model = make_model(config, tp=group, prepack=group.size > 1)
    load_weights(model, folder)
    logits = {folder.name: logits_of(model, TOKENS)}
    if (folder / "adapter").is_dir():
        manager = AdapterManager(model, PeftSource(), 2, 8)
        index = manager.load(AdapterRef("adapter", str(folder / "adapter")))
        everyone = manager.batch([index], [24])
        some = manager.batch([index, -1], [10, 14])
        logits[f"{folder.name} with adapter"] = logits_of(model, TOKENS, adapters=everyone)
        logits[f"{folder.name} with adapter on some"] = logits_of(model, TOKENS, adapters=some)
    dummy = make_model(config, tp=group)
    init_dummy_weights(dummy, 0)
    norm = dummy.get_parameter("model.norm.weight")  # type: ignore[attr-defined]
    logits[f"{folder.name} dummy norm"] = norm.detach()
    return {name: tensor.contiguous() for name, tensor in logits.items()}


if __name__ == "__main__":
    address, rank, size, output, *folders = sys.argv[1:]
    paths = [Path(folder) for folder in folders]
    main(Arguments(Path(address), int(rank), int(size), Path(output), paths))
