"""Unquantized weights of all experts in one tensor, and their product in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.interfaces.quantization import GroupedProduct, GroupedWeight, LinearMethod
from quire.layers.context import LayerContext


class WeightStack:
    """Memory for the weights of all experts of a device.

    Args:
        num_experts: Number of experts.
        out_features: Number of outputs of each.
        in_features: Number of inputs of each.
        context: Settings of the layer.

    Attributes:
        weight: `[E, out, in]`.
    """

    def __init__(
        self, num_experts: int, out_features: int, in_features: int, context: LayerContext
    ) -> None:
        self.batch_invariant = context.batch_invariant
        shape = (num_experts, out_features, in_features)
        self.weight = torch.empty(shape, dtype=context.dtype, device=context.device)


class StackedWeight(LinearMethod):
    """Weight of one expert, as a part of the stack.

    Args:
        stack: Memory of all experts.
        index: Index of the expert in it.
    """

    def __init__(self, stack: WeightStack, index: int) -> None:
        self.stack = stack
        self.index = index
        self.is_batch_invariant = stack.batch_invariant

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register `weight` `[out_features, in_features]`, a view of the stack."""
        del out_features, in_features
        view = self.stack.weight[self.index]
        layer.register_parameter("weight", nn.Parameter(view, requires_grad=False))

    def finish_loading(self, layer: nn.Module) -> None:
        """Do nothing: the weight is in its memory."""

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T` for one expert."""
        return functional.linear(x, layer.weight)  # type: ignore[arg-type]

    def grouped_product(self, weights: Sequence[GroupedWeight]) -> GroupedProduct:
        """Return the product with the stack, whose experts the weights are, in order."""
        biases = [weight.bias for weight in weights if weight.bias is not None]
        return StackedProduct(self.stack, torch.stack(biases) if biases else None)


class StackedProduct:
    """Product of rows sorted by expert with the stack, by a Triton kernel.

    Args:
        stack: Weights.
        bias: Biases, `[E, out]`, or None.
    """

    def __init__(self, stack: WeightStack, bias: Tensor | None) -> None:
        from quire.kernels.grouped_product import grouped_product  # loads Triton

        self._product = grouped_product
        self._stack = stack
        self._bias = bias

    def __call__(
        self,
        x: Tensor,  # [S, in]
        ends: Tensor,  # [E] int64
    ) -> Tensor:  # [S, out]
        """Multiply the rows of each expert, and add its bias; later rows are undefined."""
        stack = self._stack
        return self._product(
            x, stack.weight, self._bias, ends, batch_invariant=stack.batch_invariant
        )
