"""Weight of one linear layer of one expert: this device's shard of it, or none of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.interfaces.quantization import GroupedWeight, LinearMethod
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Shape of the linear layers of all experts, and this device's shard of each.

    Attributes:
        parts: Number of rows of each of the checkpoint's matrices, by name, in order.
        rows: Rows of each matrix on this device.
        num_columns: Number of inputs.
        columns: Inputs of this device.
        has_bias: Whether each matrix has a bias.
        adds_bias: Whether this device adds the bias: one of the devices whose outputs are summed.
    """

    parts: dict[str, int]
    rows: dict[str, range]
    num_columns: int
    columns: range
    has_bias: bool
    adds_bias: bool = True

    @property
    def out_features(self) -> int:
        """Number of rows on this device."""
        return sum(map(len, self.rows.values()))


class ExpertLinear(Layer):
    """Weight and bias of one expert; several matrices of the checkpoint are stacked.

    Args:
        shape: Shape of the layer.
        method: Storage of the weight; None: another device has this expert, and the checkpoint's
            tensors are not loaded.
        context: Settings to build the layer with.
    """

    bias: Tensor | None

    def __init__(
        self, shape: ExpertShape, method: LinearMethod | None, context: LayerContext
    ) -> None:
        super().__init__()
        self.shape = shape
        self.method = method
        size = 0 if method is None else shape.out_features
        if method is None:
            self.register_parameter("weight", frozen((0, 0), context.dtype, context.device))
        else:
            method.create_weights(self, shape.out_features, len(shape.columns))
        vector = frozen((size,), context.dtype, context.device) if shape.has_bias else None
        self.register_parameter("bias", vector)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[rows]` for a vector and `[rows, columns]` for a matrix."""
        num_rows = self.shape.parts[part]
        is_vector = self.get_parameter(parameter).dim() == 1
        return (num_rows,) if is_vector else (num_rows, self.shape.num_columns)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Load this device's rows and columns of one checkpoint matrix."""
        if self.method is None:
            return None
        rows = self.shape.rows[part]
        shard = tensor[rows.start : rows.stop]
        if tensor.dim() == 2:
            shard = shard[:, self.shape.columns.start : self.shape.columns.stop]
        elif not self.shape.adds_bias:
            shard = torch.zeros_like(shard)
        offset = self._offset(part)
        if parameter == "weight":
            return self.method.load(self, shard, offset)
        self.get_parameter(parameter)[offset : offset + len(rows)].copy_(shard)
        return None

    def load_quantized(self, parameter: str, weight: QuantizedWeight, part: str) -> None:
        """Pass this device's rows and columns of a quantized matrix to the method."""
        if parameter != "weight":
            return super().load_quantized(parameter, weight, part)
        if self.method is None:
            return None
        rows = self.shape.rows[part]
        shard = weight.rows(torch.arange(rows.start, rows.stop)).columns(self.shape.columns)
        return self.method.load_quantized(self, shard, self._offset(part))

    def finish_loading(self) -> None:
        """Repack the weight by its method."""
        if self.method is not None:
            self.method.finish_loading(self)

    def grouped(self) -> GroupedWeight:
        """Return the weight for a product of several experts."""
        if self.method is None:
            raise RuntimeError("another device has this expert")
        return GroupedWeight(self.method, self, self.bias)

    def _offset(self, part: str) -> int:
        offset = 0
        for name, rows in self.shape.rows.items():
            if name == part:
                return offset
            offset += len(rows)
        raise KeyError(part)
