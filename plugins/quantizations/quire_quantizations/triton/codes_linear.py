"""Linear method that keeps the codes of a quantized checkpoint and multiplies by Triton kernels.

What the checkpoint has not quantized is an ordinary weight: a layer that its config excludes, and a
merged layer of which it has quantized some matrices only. Until something is loaded, a layer has
no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.errors import SettingsError
from quire.interfaces.quantization import (
    GroupedProduct,
    GroupedWeight,
    LayerSettings,
    LinearMethod,
    Quantization,
)
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.triton.codes_product import LARGEST_UNIT, grouped_product, product
from quire_quantizations.triton.packed_codes import PackedCodes, of_expert, packed, stacked
from quire_quantizations.weight_rows import concatenated, fit_together

FLOAT8_CAPABILITY = (8, 9)  # from which on a GPU converts e4m3 by an instruction


class CodesOfCheckpoint(Quantization):
    """The codes that a checkpoint has, whatever its format is.

    Args:
        settings: Settings of the layers.
    """

    def __init__(self, settings: LayerSettings | None = None) -> None:
        self.settings = settings

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CodesOfCheckpoint:
        """Return the method, which takes no options.

        Raises:
            SettingsError: There are options.
        """
        if config:
            raise SettingsError(f"triton_codes takes no options, got {', '.join(sorted(config))}")
        return cls()

    def for_layers(self, settings: LayerSettings) -> CodesOfCheckpoint:
        """Return the method for layers of these settings."""
        return CodesOfCheckpoint(settings)

    def linear_method(self, module_name: str) -> LinearMethod:
        """Return the linear method, which is the same for all layers.

        Raises:
            RuntimeError: `for_layers` was not called.
        """
        if self.settings is None:
            raise RuntimeError(f"no settings for the weight of {module_name}: call for_layers")
        return CodesLinear(self.settings)


@dataclass(frozen=True, slots=True)
class _Slice:
    """Some outputs of a layer that have one format.

    Attributes:
        first: Index of the first.
        weight: Their weight.
    """

    first: int
    weight: PackedCodes

    @property
    def outputs(self) -> slice:
        """Indices of the outputs."""
        return slice(self.first, self.first + self.weight.num_outputs)


class CodesLinear(LinearMethod):
    """One weight as codes, or as an ordinary weight if the checkpoint has not quantized it.

    Args:
        settings: Settings of the layer.
    """

    def __init__(self, settings: LayerSettings) -> None:
        self.settings = settings
        self._loaded: list[tuple[int, QuantizedWeight]] = []
        self._slices: list[_Slice] = []
        self._out_features = 0

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register `weight` `[out_features, in_features]`, without memory."""
        self._out_features = out_features
        _set_weight(layer, torch.empty(out_features, in_features, device="meta"))

    def expect(self, layer: nn.Module, dtype: torch.dtype) -> None:
        """Allocate the weight, in the compute dtype."""
        del dtype
        weight = layer.get_parameter("weight")
        if weight.is_meta:
            settings = self.settings
            memory = torch.empty(weight.shape, dtype=settings.dtype, device=settings.device)
            _set_weight(layer, memory)

    def load_quantized(self, layer: nn.Module, weight: QuantizedWeight, first_row: int) -> None:
        """Keep a slice on the device until all are there."""
        del layer
        self._loaded.append((first_row, _on_device(weight, self.settings.device)))

    def finish_loading(self, layer: nn.Module) -> None:
        """Pack the codes; if the layer has an ordinary weight, dequantize them into it."""
        loaded, self._loaded = sorted(self._loaded, key=lambda each: each[0]), []
        if sum(len(weight.codes) for _, weight in loaded) < self._out_features:
            self.expect(layer, self.settings.dtype)
        dense = layer.get_parameter("weight")
        if not dense.is_meta:
            for first, weight in loaded:
                dense[first : first + len(weight.codes)].copy_(weight.dequantized())
            return
        layer.register_parameter("weight", None)
        self._slices = [
            _Slice(group[0][0], self._packed([weight for _, weight in group]))
            for group in _of_one_format(loaded)
        ]
        self.is_batch_invariant = self.settings.batch_invariant
        self._register(layer)

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T`."""
        if not self._slices:
            return functional.linear(x, layer.get_parameter("weight"))
        return self._multiply(x, None)

    def apply_with_bias(self, layer: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias` in one pass."""
        if not self._slices:
            return functional.linear(x, layer.get_parameter("weight"), bias)
        return self._multiply(x, bias)

    def grouped_product(self, weights: Sequence[GroupedWeight]) -> GroupedProduct | None:
        """Return one product with the codes of all experts, if they have one format.

        The experts' own weights are then views of one stack.
        """
        methods = [one.method for one in weights if isinstance(one.method, CodesLinear)]
        if len(methods) < len(weights) or any(len(method._slices) != 1 for method in methods):
            return None
        stack = stacked([method._slices[0].weight for method in methods])
        if stack is None:
            return None
        for expert, (method, one) in enumerate(zip(methods, weights, strict=True)):
            method._slices = [_Slice(0, of_expert(stack, expert))]
            method._register(one.layer)
        biases = [one.bias for one in weights if one.bias is not None]
        return _GroupedCodes(
            stack, torch.stack(biases) if biases else None, self.settings.batch_invariant
        )

    def _packed(self, weights: Sequence[QuantizedWeight]) -> PackedCodes:
        settings = self.settings
        has_float8 = settings.device.type == "cuda" and (
            torch.cuda.get_device_capability(settings.device) >= FLOAT8_CAPABILITY
        )
        largest = LARGEST_UNIT[settings.dtype.itemsize]
        return packed(concatenated(weights), has_float8=has_float8, largest_unit=largest)

    def _register(self, layer: nn.Module) -> None:
        """Register the tensors as buffers, so that their memory is counted."""
        for index, part in enumerate(self._slices):
            for name, tensor in part.weight.tensors().items():
                layer.register_buffer(f"{name}_{index}", tensor)

    def _multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out = x.new_empty(len(x), self._out_features)
        for part in self._slices:
            here = part.outputs
            product(
                x,
                part.weight,
                None if bias is None else bias[here],
                out[:, here],
                batch_invariant=self.settings.batch_invariant,
            )
        return out


class _GroupedCodes:
    """Product of rows sorted by expert with the codes of all experts.

    Args:
        weights: Weights of all experts.
        bias: `[E, out]`, or None.
        batch_invariant: Whether a row's bits must not depend on the other rows.
    """

    def __init__(self, weights: PackedCodes, bias: Tensor | None, batch_invariant: bool) -> None:
        self._weights = weights
        self._bias = bias
        self._batch_invariant = batch_invariant

    def __call__(
        self,
        x: Tensor,  # [S, in]
        ends: Tensor,  # [E] int64
    ) -> Tensor:  # [S, out]
        """Multiply the rows of each expert, and add its bias; later rows are undefined."""
        return grouped_product(
            x, self._weights, self._bias, ends, batch_invariant=self._batch_invariant
        )


def _set_weight(layer: nn.Module, weight: Tensor) -> None:
    layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))


def _on_device(weight: QuantizedWeight, device: torch.device) -> QuantizedWeight:
    return replace(
        weight,
        codes=weight.codes.to(device),
        scales=weight.scales.to(device),
        table=weight.table.to(device),
        offsets=None if weight.offsets is None else weight.offsets.to(device),
        groups=None if weight.groups is None else weight.groups.to(device),
    )


def _of_one_format(
    loaded: Sequence[tuple[int, QuantizedWeight]],
) -> list[list[tuple[int, QuantizedWeight]]]:
    """Divide adjacent slices, so that all of one list can be packed together."""
    lists: list[list[tuple[int, QuantizedWeight]]] = []
    for first, weight in loaded:
        if lists and _have_one_format(lists[-1][-1][1], weight):
            lists[-1].append((first, weight))
        else:
            lists.append([(first, weight)])
    return lists


def _have_one_format(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    return (
        one.scales.shape[1] == other.scales.shape[1]
        and (one.offsets is None) == (other.offsets is None)
        and fit_together(one, other)
    )
