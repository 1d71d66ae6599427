"""Copies between host and device that do not block the host.

A copy from or to pageable memory blocks the host. A copy of page-locked memory does not, and
torch's allocator reuses page-locked memory only when its copies are done.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on the device; on a CPU it shares the array's memory."""
    if device.type == "cpu":
        return torch.from_numpy(array)
    return _page_locked(array).to(device, non_blocking=True)


def upload_into(array: NDArray[Any], target: Tensor) -> None:
    """Copy the array to a tensor of its size and dtype; the caller may change the array at once."""
    if target.device.type == "cpu":
        target.copy_(torch.from_numpy(array))
    else:
        target.copy_(_page_locked(array), non_blocking=True)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Tensors that are being copied to the host.

    Attributes:
        tensors: Copies in host memory; valid after `event`.
        event: Event at the end of the copies; None if there is nothing to wait for.
    """

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event | None

    @property
    def is_done(self) -> bool:
        """Whether the tensors are in host memory."""
        return self.event is None or bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> tuple[Tensor, ...]:
        """Wait for the copies, and return the tensors in host memory."""
        if self.event is not None:
            self.event.synchronize()
        return self.tensors


class HostCopier:
    """Copies tensors from one device; on a CPU there is nothing to copy."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, *tensors: Tensor) -> HostCopy:
        """Start to copy tensors once the work queued on the current stream is done.

        The tensors must not be written afterwards: clone a buffer that the next step fills again.
        """
        if self._stream is None:
            return HostCopy(tensors, None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            copies = tuple(_pinned_copy(tensor) for tensor in tensors)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        for tensor in tensors:
            tensor.record_stream(self._stream)  # its memory is not reused before it is copied
        return HostCopy(copies, event)


def _page_locked(array: NDArray[Any]) -> Tensor:
    host = torch.empty(array.shape, dtype=_torch_dtype(array), pin_memory=True)
    host.numpy()[...] = array
    return host


def _torch_dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def _pinned_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
