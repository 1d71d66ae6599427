"""Targets of weights: the layer and the parameter that each tensor of a model is loaded to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from quire.interfaces.model import Model
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.layers.layer import Layer


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of a tensor.

    Attributes:
        module: Layer that loads the tensor.
        parameter: Name of the layer's parameter.
        part: Name of the matrix inside a merged parameter, such as `k_proj` of qkv; for other
            parameters the last part of the module's path.
    """

    module: nn.Module
    parameter: str
    part: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that the tensor must have."""
        if isinstance(self.module, Layer):
            return self.module.checkpoint_shape(self.parameter, self.part)
        return tuple(self.module.get_parameter(self.parameter).shape)

    def load(self, weight: Tensor | QuantizedWeight) -> None:
        """Load the tensor into the parameter, cut to this device's shard."""
        if isinstance(weight, QuantizedWeight):
            if isinstance(self.module, Layer):
                return self.module.load_quantized(self.parameter, weight, self.part)
            weight = weight.dequantized()
        if isinstance(self.module, Layer):
            self.module.load_weight(self.parameter, weight, self.part)
        else:
            self.module.get_parameter(self.parameter).copy_(weight)
        return None


def weight_targets(model: Model) -> dict[str, Target]:
    """Return the target of each required tensor, by its name in the model.

    Merged parameters have a name for each tensor that they consist of. Parameters that several
    layers share appear once.
    """
    root = as_module(model)
    owners = dict(root.named_modules())
    targets: dict[str, Target] = {}
    for path, _ in root.named_parameters():
        owner_path, _, parameter = path.rpartition(".")
        parent, _, last = owner_path.rpartition(".")
        for part in model.packed_modules.get(last, (last,)):
            name = ".".join(filter(None, (parent, part, parameter)))
            targets[name] = Target(owners[owner_path], parameter, part)
    return targets


def optional_targets(model: Model) -> dict[str, Target]:
    """Return the target of each optional tensor, by its name in the model."""
    return {
        name: Target(module, parameter, "")
        for path, module in as_module(model).named_modules()
        if isinstance(module, Layer)
        for name, parameter in module.optional_weights(path).items()
    }


def as_module(model: Model) -> nn.Module:
    """Return the model as an `nn.Module`.

    Raises:
        TypeError: The model's class does not derive from `nn.Module`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{type(model).__name__} must be a torch.nn.Module as well as a Model")
    return model
