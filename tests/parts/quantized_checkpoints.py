"""Checkpoints whose linear layers are quantized, and the same ones with the dequantized weights."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from quantized_layers import (
    QuantizedLayer,
    awq,
    float_quantized,
    gptq,
    int_quantized,
    llm_int8,
    nf4,
    pack_quantized,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.interfaces.quantization import PreparedQuantization
from quire_quantizations.checkpoints.awq import AWQ
from quire_quantizations.checkpoints.bitsandbytes import BitsAndBytes
from quire_quantizations.checkpoints.compressed_tensors import CompressedTensors
from quire_quantizations.checkpoints.gptq import GPTQ


@dataclass(frozen=True)
class CheckpointKind:
    """A format, with one set of its options.

    Attributes:
        method: Reader of the format.
        config: `quantization_config` of config.json.
        write: Function that quantizes the weight `[N, K]` of a layer.
    """

    method: type[PreparedQuantization]
    config: dict[str, Any]
    write: Callable[[Tensor], QuantizedLayer]

    def reader(self) -> PreparedQuantization:
        return self.method.from_config(self.config)


def act_order(weight: Tensor) -> QuantizedLayer:
    """Quantize inputs in an order of their own, the same for all layers of a width."""
    columns = weight.shape[1]
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns))
    return gptq(weight, symmetric=False, groups=(torch.arange(columns) // 16)[order])


def _gptq(**options: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, **options}


def _compressed(bits: int, layout: str, **options: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, **(options or {"group_size": 16})}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups}


BNB = {"quant_method": "bitsandbytes"}
NF4 = {**BNB, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
KINDS = {
    "gptq": CheckpointKind(GPTQ, _gptq(sym=True), gptq),
    "gptq-8": CheckpointKind(
        GPTQ, _gptq(bits=8, sym=False), lambda w: gptq(w, 8, 32, symmetric=False)
    ),
    "gptq-act-order": CheckpointKind(
        GPTQ, _gptq(desc_act=True, sym=False, group_size=16), act_order
    ),
    "packed": CheckpointKind(
        CompressedTensors, _compressed(4, "pack-quantized"), lambda w: pack_quantized(w, 4, 16)
    ),
    "packed-zeros": CheckpointKind(
        CompressedTensors,
        _compressed(8, "pack-quantized", group_size=16, symmetric=False),
        lambda w: pack_quantized(w, 8, 16, symmetric=False),
    ),
    "int-quantized": CheckpointKind(
        CompressedTensors, _compressed(8, "int-quantized", strategy="channel"), int_quantized
    ),
    "float-quantized": CheckpointKind(
        CompressedTensors,
        _compressed(8, "float-quantized", type="float", strategy="channel"),
        float_quantized,
    ),
    "nf4": CheckpointKind(BitsAndBytes, NF4, lambda w: nf4(w, nested=True)),
    "llm-int8": CheckpointKind(BitsAndBytes, {**BNB, "load_in_8bit": True}, llm_int8),
    "awq": CheckpointKind(
        AWQ, {"quant_method": "awq", "bits": 4, "group_size": 16}, lambda w: awq(w, 16)
    ),
}


def write_quantized(
    plain: Path,
    folder: Path,
    kind: CheckpointKind,
    is_quantized: Callable[[str], bool],
    *,
    transposed: bool = False,
) -> None:
    """Write a checkpoint with quantized layers, and replace their weights in the plain one.

    Args:
        plain: Folder of an unquantized checkpoint.
        folder: Folder to write.
        kind: Format.
        is_quantized: Function that tells from a weight's name whether it is quantized.
        transposed: Whether the plain checkpoint has linear weights as `[in, out]`.
    """
    shutil.copytree(plain, folder)
    weights = load_file(plain / "model.safetensors")
    packed = dict(weights)
    for name, tensor in weights.items():
        if tensor.dim() == 2 and is_quantized(name):
            layer = kind.write(tensor.T.float() if transposed else tensor.float())
            module = name.removesuffix(".weight")
            del packed[name]
            packed |= {f"{module}.{end}": part.contiguous() for end, part in layer.tensors.items()}
            weights[name] = (layer.weight.T if transposed else layer.weight).contiguous()
    save_file(weights, plain / "model.safetensors")
    save_file(packed, folder / "model.safetensors")
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {"quantization_config": kind.config}
    file.write_text(json.dumps(config))
