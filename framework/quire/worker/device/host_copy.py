"""Bring results to the host on a stream of their own, while the device goes on with its work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Tensors on their way to the host."""

    tensors: tuple[Tensor, ...]
    arrival: torch.cuda.Event | None

    def wait(self) -> tuple[Tensor, ...]:
        """Return them, in host memory, once they are there."""
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.tensors


class HostCopier:
    """Copies from one device; from a CPU there is nothing to copy."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, *tensors: Tensor) -> HostCopy:
        """Begin to copy what the current stream has been told to compute.

        Nobody may write to these tensors afterwards: a buffer that the next step fills again is
        cloned before.
        """
        if self._stream is None:
            return HostCopy(tensors, None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            copies = tuple(_pinned_copy(tensor) for tensor in tensors)
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record()
        for tensor in tensors:
            tensor.record_stream(self._stream)  # its memory is not given away before it is read
        return HostCopy(copies, arrival)


def _pinned_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
