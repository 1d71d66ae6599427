"""Arrays that the host fills and the device reads lie side by side, and go up in one copy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.worker.device.uploads import upload_into

ALIGNMENT = 16  # bytes, as the widest loads of a kernel like it


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One array: how many elements, and of what type."""

    size: int
    dtype: torch.dtype


class Mirror:
    """Named arrays, on both sides. What the host writes is on the device after `push`.

    Attributes:
        host: By name, numpy arrays to write to.
        device: By name, tensors that always lie at the same address; zeros at first.
    """

    def __init__(self, columns: Mapping[str, BufferSpec], device: torch.device) -> None:
        starts, end = {}, 0
        for name, column in columns.items():
            starts[name] = end
            end += -(-column.size * column.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._host = np.zeros(end, np.uint8)
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.host: dict[str, NDArray[Any]] = {}
        self.device: dict[str, Tensor] = {}
        for name, column in columns.items():
            stop = starts[name] + column.size * column.dtype.itemsize
            kind = torch.empty(0, dtype=column.dtype).numpy().dtype
            self.host[name] = self._host[starts[name] : stop].view(kind)
            self.device[name] = self._device[starts[name] : stop].view(column.dtype)

    def push(self) -> None:
        """Send everything up, behind what the device has been told to do."""
        upload_into(self._host, self._device)
