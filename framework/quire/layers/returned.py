"""Check of tensors that plugin code returned: shape, dtype and device, without reading values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.errors import RequestFailedError


def check_returned(
    returned: object,
    shape: Sequence[int],
    dtype: torch.dtype | None,
    device: torch.device,
    called: str,
) -> None:
    """Check a returned tensor before torch broadcasts or converts it silently.

    Args:
        returned: Object that was returned.
        shape: Required shape.
        dtype: Required dtype; None: any floating-point dtype.
        device: Required device.
        called: Name of the called function or plugin part for the error message.

    Raises:
        RequestFailedError: The object is not a tensor of this shape, dtype and device.
    """
    if (
        isinstance(returned, Tensor)
        and returned.shape == shape
        and (returned.is_floating_point() if dtype is None else returned.dtype == dtype)
        and returned.device == device
    ):
        return
    wanted = _tensor_kind(list(shape), dtype, device)
    raise RequestFailedError(f"{called} returned {_kind_of(returned)}; it must return {wanted}")


def _kind_of(returned: object) -> str:
    if isinstance(returned, Tensor):
        return _tensor_kind(list(returned.shape), returned.dtype, returned.device)
    return "None" if returned is None else f"a {type(returned).__name__}"


def _tensor_kind(shape: list[int], dtype: torch.dtype | None, device: torch.device) -> str:
    kind = "floating-point" if dtype is None else str(dtype).removeprefix("torch.")
    return f"a {kind} tensor of shape {shape} on {device}"
