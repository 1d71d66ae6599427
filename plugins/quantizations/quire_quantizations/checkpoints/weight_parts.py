"""Parts of a quantized weight in a checkpoint: lookup, and checks of dtypes, shapes and values."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Tensors

FLOATS = ("F16", "BF16", "F32")
WEIGHT = ".weight"


def modules_with(tensors: Tensors, suffix: str) -> Iterator[str]:
    """Yield the module paths of the tensors with a suffix: `.qweight`."""
    return (name.removesuffix(suffix) for name in tensors if name.endswith(suffix))


def without(tensors: Tensors, names: Collection[str]) -> dict[str, CheckpointTensor]:
    """Return the tensors that do not have one of the names."""
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def part(tensors: Tensors, name: str, of: CheckpointTensor) -> CheckpointTensor:
    """Return a part that a quantized weight must have.

    Raises:
        CheckpointCorruptError: It is missing.
    """
    found = tensors.get(name)
    if found is None:
        raise CheckpointCorruptError(
            f"tensor {of.name} in {_file(of)} is quantized, and {name} is missing; copy the "
            "checkpoint completely"
        )
    return found


def check_part(
    tensor: CheckpointTensor, dtypes: Collection[str], shape: tuple[int | None, ...], of: str
) -> None:
    """Check the dtype and the shape of a part.

    Args:
        tensor: The part.
        dtypes: Allowed dtypes, as safetensors names them.
        shape: Required shape; None: any size.
        of: What requires it, for the error: "gptq with 4 bits".

    Raises:
        CheckpointCorruptError: They are others.
    """
    where = f"tensor {tensor.name} in {_file(tensor)}"
    dtype = tensor.stored[0].dtype
    if dtype not in dtypes:
        raise CheckpointCorruptError(
            f"{where} has the dtype {dtype}; {of} needs {' or '.join(dtypes)}"
        )
    fits = len(tensor.shape) == len(shape) and all(
        needed in (None, size) for size, needed in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        needed = ", ".join("any" if size is None else str(size) for size in shape)
        raise CheckpointCorruptError(
            f"{where} has shape {list(tensor.shape)}; {of} needs [{needed}]"
        )


def check_finite(values: Tensor, name: str) -> Tensor:
    """Return scales in float32.

    Raises:
        CheckpointCorruptError: Some are infinite or no numbers.
    """
    values = values.float()
    if values.numel() and not torch.stack(values.aminmax()).isfinite().all():
        wrong = values.numel() - int(torch.isfinite(values).sum())
        raise CheckpointCorruptError(
            f"tensor {name} has {wrong} values that are infinite or NaN, so the weight that it "
            "scales cannot be computed; download the checkpoint again, or use another one"
        )
    return values


def integers(num_values: int, zero: int = 0) -> Tensor:
    """Return the table of integer codes, less their zero point."""
    return torch.arange(num_values, dtype=torch.float32).sub_(zero)


def group_size_of(inputs: int, groups: int, wanted: object, scales: CheckpointTensor) -> int:
    """Return the number of consecutive inputs that share a scale; the last group may be smaller.

    Args:
        inputs: Number of inputs.
        groups: Number of groups.
        wanted: `group_size` of the config.
        scales: Tensor for the error.

    Raises:
        CheckpointCorruptError: The inputs cannot be divided so.
    """
    if isinstance(wanted, int) and wanted > 0 and -(-inputs // wanted) == groups:
        return wanted
    if groups and inputs % groups == 0:
        return inputs // groups
    raise CheckpointCorruptError(
        f"tensor {scales.name} in {_file(scales)} has scales for {groups} groups of inputs, and "
        f"the {inputs} inputs of the weight cannot be divided so by the group_size {wanted!r} of "
        "config.json; correct it in quantization_config"
    )


def _file(tensor: CheckpointTensor) -> str:
    return tensor.stored[0].file.name
