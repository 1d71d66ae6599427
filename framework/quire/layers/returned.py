"""Compare what a plugin returned with its contract, by what the host knows: no value is read."""

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
    """Check a result before torch broadcasts or converts it in silence.

    Args:
        returned: The result.
        shape: Shape that the contract asks for.
        dtype: Element type that it asks for; None: any floating one.
        device: Where the result must lie.
        called: Name of what was called, for the error.

    Raises:
        RequestFailedError: The result is not of this kind.
    """
    if (
        isinstance(returned, Tensor)
        and returned.shape == shape
        and (returned.is_floating_point() if dtype is None else returned.dtype == dtype)
        and returned.device == device
    ):
        return
    wanted = _described(list(shape), dtype, device)
    raise RequestFailedError(f"{called} returned {_kind(returned)}; it must return {wanted}")


def _kind(returned: object) -> str:
    if isinstance(returned, Tensor):
        return _described(list(returned.shape), returned.dtype, returned.device)
    return "None" if returned is None else f"a {type(returned).__name__}"


def _described(shape: list[int], dtype: torch.dtype | None, device: torch.device) -> str:
    kind = "floating-point" if dtype is None else str(dtype).removeprefix("torch.")
    return f"a {kind} tensor of shape {shape} on {device}"
