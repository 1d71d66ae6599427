"""Upload of small arrays to the device without blocking the host.

A copy from pageable memory blocks the host. A copy from page-locked memory does not, and torch's
allocator reuses page-locked memory only when the copies from it are done.
"""

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


def _page_locked(array: NDArray[Any]) -> Tensor:
    host = torch.empty(array.shape, dtype=_torch_dtype(array), pin_memory=True)
    host.numpy()[...] = array
    return host


def _torch_dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
