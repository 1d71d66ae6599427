"""Product of rows sorted by expert with the packed weights of several experts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from quire_quantizations import linear_library as library
from quire_quantizations.linear_library import ExpertsStruct
from quire_quantizations.packed_weight import PackedWeight


class PackedExperts:
    """Weights of several experts, and the compiled product of rows of all of them.

    The product reads the number of rows of each expert, and the weights only of experts that have
    rows. A row's result does not depend on the other rows.

    Args:
        weights: Packed weights, all of one shape and format.
        biases: Bias of each, `[out]` float32; empty: no biases.
    """

    def __init__(self, weights: Sequence[PackedWeight], biases: Sequence[Tensor]) -> None:
        self._multiply = library.library_of(weights[0].weight_format).load().grouped_linear
        self._held = (tuple(weights), tuple(biases))
        first = weights[0]
        self.in_features, self.out_features = first.in_features, first.out_features
        self._num_experts = len(weights)
        self._packed = _pointers([weight.memory for weight in weights])
        self._biases = _pointers(biases) if biases else None
        orders = [weight.order for weight in weights]
        has_orders = any(order is not None for order in orders)
        self._orders = _pointers(orders) if has_orders else None
        self._struct = ExpertsStruct(
            first.weight_format.index,
            library.kind_of_products(first.weight_format),
            self.in_features,
            self.out_features,
            len(weights),
            ctypes.addressof(self._packed),
            None if self._biases is None else ctypes.addressof(self._biases),
            torch.get_num_threads(),
            None if self._orders is None else ctypes.addressof(self._orders),
        )
        self._address = ctypes.addressof(self._struct)

    def __call__(
        self,
        x: Tensor,  # [S, in] float32, sorted by expert
        ends: Tensor,  # [E] int64
    ) -> Tensor:  # [S, out]
        """Multiply the rows of each expert, which end at `ends`; later rows are undefined.

        Raises:
            ValueError: `x` or `ends` has the wrong dtype or shape.
        """
        num_rows, inputs = x.shape
        if x.dtype != torch.float32 or inputs != self.in_features:
            raise ValueError(
                f"x must be float32 with {self.in_features} columns, got {x.dtype} with {inputs}"
            )
        if ends.dtype != torch.int64 or ends.shape != (self._num_experts,):
            raise ValueError(
                f"ends must be int64 [{self._num_experts}], got {ends.dtype} {list(ends.shape)}"
            )
        x, ends = x.contiguous(), ends.contiguous()
        out = x.new_empty(num_rows, self.out_features)
        self._multiply(self._address, x.data_ptr(), ends.data_ptr(), out.data_ptr())
        return out


def _pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    addresses = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
    return (ctypes.c_void_p * len(tensors))(*addresses)
