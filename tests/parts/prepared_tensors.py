"""Files with the tensors of one quantized layer, and what a reader makes of them."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, unchanged
from quire.interfaces.quantization import PreparedQuantization
from quire.worker.loading.checkpoint_files import read_headers
from quire.worker.loading.tensor_reading import read_stored

LAYER = "layer"


def read_layer(
    folder: Path,
    method: PreparedQuantization,
    tensors: Mapping[str, Tensor | None],
    others: Mapping[str, Tensor] = {},
    *,
    every: bool = False,
):
    """Write the tensors of a layer, and return its weight as it is read, or all tensors."""
    found = _tensors(folder, method, tensors, others)
    if every:
        return found
    weight = found[f"{LAYER}.weight"]
    value = weight.value(*map(read_stored, weight.stored))
    assert tuple(value.shape) == weight.shape
    return value


def refusal_of(
    folder: Path, method: PreparedQuantization, tensors: Mapping[str, Tensor | None]
) -> str:
    """Return the error for a layer with such tensors; None: it lacks this one."""
    with pytest.raises(CheckpointCorruptError) as caught:
        read_layer(folder, method, tensors)
    return str(caught.value)


def _tensors(
    folder: Path,
    method: PreparedQuantization,
    tensors: Mapping[str, Tensor | None],
    others: Mapping[str, Tensor],
) -> Mapping[str, CheckpointTensor]:
    file = folder / "model.safetensors"
    own = {f"{LAYER}.{name}": tensor for name, tensor in tensors.items() if tensor is not None}
    save_file({**own, **others}, file)
    return method.read(unchanged(read_headers([file])), read_stored)
