"""One rank of a tensor-parallel group: computes the logits of many checkpoints, and saves them.

python parallel_rank.py KIND FOLDER RANK SIZE OUTPUT CHECKPOINT... ; the kind of group is "gloo" or
"shared", the ranks meet in the folder, and a checkpoint's folder may have an adapter in `adapter/`.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from model_parts import make_model, random_tokens
from rank_process import FolderExchange
from safetensors.torch import save_file
from torch import Tensor

from quire.layers import TensorParallelGroup
from quire.messages import AdapterRef
from quire.testing.model.dense_attention import logits_of
from quire.worker.device.distributed_group import DistributedGroup
from quire.worker.device.group_place import GroupPlace
from quire.worker.device.shared_memory_group import SharedMemoryGroup
from quire.worker.loading.weight_loading import init_dummy_weights, load_weights
from quire.worker.lora.adapter_manager import AdapterManager
from quire_lora.peft_source import PeftSource

TOKENS = random_tokens(24)


@dataclass
class Arguments:
    kind: str
    folder: Path
    rank: int
    size: int
    output: Path
    checkpoints: list[Path]


def main(arguments: Arguments) -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    exchange = FolderExchange(arguments.folder)
    place = GroupPlace(
        rank=arguments.rank,
        ranks=range(arguments.size),
        ranks_on_node=arguments.size,
        timeout_s=60,
    )
    group: TensorParallelGroup
    if arguments.kind == "gloo":
        group = DistributedGroup.join(exchange, "group", place, device, "127.0.0.1")
    else:
        group = SharedMemoryGroup.join(exchange, "group", place)
    logits: dict[str, Tensor] = {}
    for folder in arguments.checkpoints:
        logits.update(compute(folder, group))
    save_file(logits, arguments.output)
    group.close()


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
    kind, folder, rank, size, output, *folders = sys.argv[1:]
    paths = [Path(folder) for folder in folders]
    main(Arguments(kind, Path(folder), int(rank), int(size), Path(output), paths))
