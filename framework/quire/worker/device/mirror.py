"""Arrays that the host fills and the device reads, contiguous so that one copy uploads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.worker.device.copies import upload_into

ALIGNMENT = 16  # bytes, for the widest loads of a kernel


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """Number of elements and dtype of one array."""

    size: int
    dtype: torch.dtype


class Mirror:
    """Named arrays on host and device; `push` uploads the values that the host has written.

    Attributes:
        host: Numpy arrays to write to, by name.
        device: Tensors with fixed addresses, by name; initially zeros.
    """

    def __init__(self, buffers: Mapping[str, BufferSpec], device: torch.device) -> None:
        starts, end = {}, 0
        for name, spec in buffers.items():
            starts[name] = end
            end += -(-spec.size * spec.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self._host = np.zeros(end, np.uint8)
        self._device = torch.zeros(end, dtype=torch.uint8, device=device)
        self.host: dict[str, NDArray[Any]] = {}
        self.device: dict[str, Tensor] = {}
        for name, spec in buffers.items():
            stop = starts[name] + spec.size * spec.dtype.itemsize
            kind = torch.empty(0, dtype=spec.dtype).numpy().dtype
            self.host[name] = self._host[starts[name] : stop].view(kind)
            self.device[name] = self._device[starts[name] : stop].view(spec.dtype)

    def push(self) -> None:
        """Upload all arrays, after the work queued on the device."""
        upload_into(self._host, self._device)
