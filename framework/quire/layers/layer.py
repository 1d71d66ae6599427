"""Base class of layers, which load this device's shard of each checkpoint tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quire.interfaces.quantized_weight import QuantizedWeight


class Layer(nn.Module):
    """A module with weights that the loader fills.

    A merged layer (qkv, gate and up) receives several checkpoint tensors for one parameter; `part`
    names one of them by the last name of the checkpoint's module: `q_proj`.

    Calling a layer calls `forward` directly. The hooks of `nn.Module` are not run, because they
    cost more time than a small layer's own work. For the same reason child modules and missing
    parameters (None, such as a bias) are ordinary attributes as well, which saves the search of
    `nn.Module.__getattr__`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a module is set as a child and as an ordinary attribute."""
        vars(self).pop(name, None)
        super().__setattr__(name, value)
        if isinstance(value, nn.Module):
            vars(self)[name] = value

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Set a parameter; None is set as an ordinary attribute as well."""
        if name in self._parameters:
            vars(self).pop(name, None)
        super().register_parameter(name, param)
        if param is None:
            vars(self)[name] = None

    def __delattr__(self, name: str) -> None:
        """Delete an attribute, and the child or parameter of that name."""
        if name in self._modules or name in self._parameters:
            vars(self).pop(name, None)
        super().__delattr__(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, without the hooks of `nn.Module`."""
        return self.forward(*args, **kwargs)

    def optional_weights(self, path: str) -> Mapping[str, str]:
        """Return the names of weights that a checkpoint may contain but need not.

        Args:
            path: Module path of the layer in the model.

        Returns:
            Checkpoint name -> `parameter` that it is loaded as; several names may have the same
            parameter.
        """
        del path
        return {}

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return the shape of the checkpoint's tensor, before tensor parallelism."""
        del part
        return tuple(self.get_parameter(parameter).shape)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy this device's shard of a checkpoint tensor to the parameter, and cast it."""
        del part
        self.get_parameter(parameter).copy_(tensor)

    def load_quantized(self, parameter: str, weight: QuantizedWeight, part: str) -> None:
        """Load a weight that the checkpoint has quantized; by default it is dequantized."""
        self.load_weight(parameter, weight.dequantized(), part)

    def finish_loading(self) -> None:
        """Prepare for use after every tensor is loaded."""


def frozen(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """Return an uninitialised parameter without gradient."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
