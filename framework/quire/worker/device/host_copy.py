"""Device-to-host copies on a separate stream, while the device continues to compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Tensors that are being copied to the host.

    Attributes:
        tensors: Copies in host memory; valid after `event`.
        event: Event at the end of the copies; None if there is nothing to wait for.
    """

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event | None

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


def _pinned_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
