"""A layer takes the checkpoint's tensors one at a time and keeps this device's share of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """A module with weights that the loader fills.

    A merged layer (qkv, gate and up) receives several checkpoint tensors for one parameter; `part`
    says which one, by the last name of the checkpoint's module: `q_proj`.

    Calling a layer goes straight to `forward`: the hooks of `nn.Module` cost more than a small
    layer's own work, and are not run.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, without the hooks of `nn.Module`."""
        return self.forward(*args, **kwargs)

    def optional_weights(self, path: str) -> Mapping[str, str]:
        """Return what a checkpoint may bring and need not, by the names that checkpoints use.

        Args:
            path: The layer's module path in the model.

        Returns:
            Names, each with the `parameter` that it is loaded as. Several may be of one parameter.
        """
        del path
        return {}

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return the shape that the checkpoint's tensor has, before tensor parallelism."""
        del part
        return tuple(self.get_parameter(parameter).shape)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's share of a checkpoint tensor into its place, casting on the way."""
        del part
        self.get_parameter(parameter).copy_(tensor)

    def finish_loading(self) -> None:
        """Make ready for use, once every tensor is loaded."""


def frozen(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """Return a parameter that is loaded and never trained; its contents are undefined."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
