"""Parts of a quantized weight in a checkpoint: lookup, and checks of dtypes, shapes and values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Tensors
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.number_tables import SIGN, has_magnitude

FLOATS = ("F16", "BF16", "F32")
WEIGHT = ".weight"
GET_ANOTHER = "download the checkpoint again, or use another one"


def modules_with(tensors: Tensors, suffix: str) -> Iterator[str]:
    """Yield the module paths of the tensors with a suffix: `.qweight`."""
    return (name.removesuffix(suffix) for name in tensors if name.endswith(suffix))


def without(tensors: Tensors, names: Collection[str]) -> dict[str, CheckpointTensor]:
    """Return the tensors that do not have one of the names."""
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def with_weights(
    tensors: Tensors,
    parts: Collection[str],
    weights: Mapping[str, CheckpointTensor],
    method: str,
) -> dict[str, CheckpointTensor]:
    """Return the tensors with weights in place of their parts.

    Args:
        tensors: Tensors of the checkpoint.
        parts: Names of the parts.
        weights: Weights, by name.
        method: Method whose format is read, for the error.

    Raises:
        CheckpointCorruptError: There are no quantized weights.
    """
    if not weights:
        raise CheckpointCorruptError(
            "no tensor of the files is quantized as quantization_config in config.json says, in "
            f"the format of {method}; correct its quant_method, or remove quantization_config if "
            "the weights are not quantized"
        )
    return without(tensors, parts) | dict(weights)


def check_complete(tensors: Tensors, ends: Collection[str], main: str) -> None:
    """Check that no weight has parts without the one with its codes.

    Args:
        tensors: Tensors of the checkpoint.
        ends: Suffixes of other parts, which are matrices; vectors of such names are something else.
        main: Suffix of the part with the codes.

    Raises:
        CheckpointCorruptError: A weight lacks it.
    """
    for name, tensor in tensors.items():
        end = next((end for end in ends if name.endswith(end)), None)
        if end is not None and len(tensor.shape) > 1:
            part(tensors, name.removesuffix(end) + main, tensor)


def part(tensors: Tensors, name: str, of: CheckpointTensor) -> CheckpointTensor:
    """Return a part that a quantized weight must have.

    Raises:
        CheckpointCorruptError: It is missing.
    """
    found = tensors.get(name)
    if found is None:
        raise CheckpointCorruptError(
            f"tensor {in_file(of)} is quantized, and {name} is missing; copy the checkpoint "
            "completely"
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
    where = f"tensor {in_file(tensor)}"
    dtype = tensor.stored[0].dtype
    if dtype not in dtypes:
        raise CheckpointCorruptError(
            f"{where} has the dtype {dtype}; {of} needs {' or '.join(dtypes)}: {GET_ANOTHER}"
        )
    fits = len(tensor.shape) == len(shape) and all(
        needed in (None, size) for size, needed in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        needed = ", ".join("any" if size is None else str(size) for size in shape)
        raise CheckpointCorruptError(
            f"{where} has shape {list(tensor.shape)}; {of} needs [{needed}]: {GET_ANOTHER}"
        )


def check_finite(values: Tensor, name: str) -> Tensor:
    """Return scales in float32.

    Args:
        values: Scales.
        name: Name of their tensor and of its file, as in the functions below.

    Raises:
        CheckpointCorruptError: Some are infinite or no numbers.
    """
    values = values.float()
    if values.numel() and not torch.stack(values.aminmax()).isfinite().all():
        wrong = values.numel() - int(torch.isfinite(values).sum())
        raise CheckpointCorruptError(
            f"tensor {name} has {wrong} values that are infinite or NaN, so the weight that it "
            f"scales cannot be computed; {GET_ANOTHER}"
        )
    return values


def check_positive(values: Tensor, name: str) -> Tensor:
    """Return scales in float32 that are largest absolute values or of floats.

    Raises:
        CheckpointCorruptError: Some are infinite, no numbers or negative.
    """
    values = check_finite(values, name)
    if values.numel() and float(values.min()) < 0:
        raise CheckpointCorruptError(
            f"tensor {name} has {int((values < 0).sum())} scales below 0, which its format does "
            f"not have; {GET_ANOTHER}"
        )
    return values


def check_scaled(weight: QuantizedWeight, name: str) -> QuantizedWeight:
    """Return a weight of floats whose codes are numbers, and whose scales erase none.

    Args:
        weight: Weight of float8.
        name: Name of its tensor with the codes, and of the file.

    Raises:
        CheckpointCorruptError: Codes are infinite or NaN, or have scales of 0.
    """
    wrong = (~weight.table.isfinite()).nonzero().flatten()
    if len(wrong) and has_magnitude(weight.codes, int(wrong[0])):
        num_wrong = int((weight.codes & ~SIGN >= wrong[0]).sum())
        raise CheckpointCorruptError(
            f"tensor {name} has {num_wrong} values that are infinite or NaN; {GET_ANOTHER}"
        )
    erased = (weight.scales == 0)[:, weight.group_indices()] if (weight.scales == 0).any() else None
    if erased is not None and bool((weight.table[weight.codes.int()][erased] != 0).any()):
        raise CheckpointCorruptError(
            f"tensor {name} has numbers other than 0 whose scales are 0; {GET_ANOTHER}"
        )
    return weight


def check_groups(groups: Tensor, num_groups: int, name: str) -> Tensor:
    """Return the group of each input, `[K]` int64.

    Args:
        groups: Groups as they are stored.
        num_groups: Number of groups that have scales.
        name: Name of their tensor and of its file.

    Raises:
        CheckpointCorruptError: There are no such groups.
    """
    lowest, highest = map(int, groups.aminmax()) if groups.numel() else (0, num_groups - 1)
    if lowest < 0 or highest >= num_groups:
        raise CheckpointCorruptError(
            f"tensor {name} has groups from {lowest} to {highest}, but there are scales for "
            f"{num_groups}; {GET_ANOTHER}"
        )
    return groups.long()


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
        f"tensor {in_file(scales)} has scales for {groups} groups of inputs, and "
        f"the {inputs} inputs of the weight cannot be divided so by the group_size {wanted!r} of "
        "config.json; correct it in quantization_config"
    )


def in_file(tensor: CheckpointTensor) -> str:
    """Return the name of a tensor and of its file, for errors."""
    return f"{tensor.name} in {tensor.stored[0].file.name}"
