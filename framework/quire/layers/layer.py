"""A layer takes the checkpoint's tensors one at a time and keeps this device's share of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quire.layers.context import LayerContext
from quire.native.layer_kernels import cpu_layers


class Layer(nn.Module):
    """A module with weights that the loader fills.

    A merged layer (qkv, gate and up) receives several checkpoint tensors for one parameter; `part`
    says which one, by the last name of the checkpoint's module: `q_proj`.

    Calling a layer goes straight to `forward`: the hooks of `nn.Module` cost more than a small
    layer's own work, and are not run. Nor is a child searched for among parameters and buffers: it
    is an ordinary attribute as well, and so is a parameter that there is not, such as a bias.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a module is found as a child and as an attribute."""
        vars(self).pop(name, None)
        super().__setattr__(name, value)
        if isinstance(value, nn.Module):
            vars(self)[name] = value

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Set a parameter; None is found as an attribute."""
        if name in self._parameters:
            vars(self).pop(name, None)
        super().register_parameter(name, param)
        if param is None:
            vars(self)[name] = None

    def __delattr__(self, name: str) -> None:
        """Forget an attribute, and the child or parameter of that name."""
        if name in self._modules or name in self._parameters:
            vars(self).pop(name, None)
        super().__delattr__(name)

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


def begin_native(context: LayerContext) -> bool:
    """Return whether layers run native kernels; their compilation then goes on beside loading."""
    is_native = context.kernels == "native"
    if is_native:
        cpu_layers.LIBRARY.begin()
    return is_native


def frozen(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """Return a parameter that is loaded and never trained; its contents are undefined."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
