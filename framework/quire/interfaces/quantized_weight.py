"""Quantized weight of a linear layer, in the form that all formats of checkpoints are decoded to.

Each element is a code, an index in a table of values, with a scale and perhaps an offset that a
group of inputs of one output shares:

    weight[n, k] = table[codes[n, k]] * scales[n, g] + offsets[n, g]      g: group of input k

So integers with zero points have the table 0, 1, 2, ... and the offsets `-zero * scale`; symmetric
ones have the table -8, -7, ..., 7 and no offsets; and NF4, e2m1 and e4m3 have their values as the
table. With scales of 16 bits and codes of at most 8, `(code - zero) * scale` has at most 24 bits,
so the offset loses nothing in float32.

Rows can be selected in any order, as merged matrices and tensor parallelism need it, and so can a
range of inputs, within a group too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CHUNK_ELEMENTS = 2**20  # that are dequantized at a time, so that intermediate values stay in caches


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A weight `[N, K]` as codes.

    Attributes:
        codes: `[N, K]` uint8.
        scales: `[N, G]` float32.
        table: Value of each code, `[values]` float32, at most 256.
        group_size: Number of consecutive inputs of a group; the last group may have fewer.
        offsets: `[N, G]` float32; None: no offsets.
        groups: Group of each input, `[K]` int64, if the inputs of a group are not consecutive;
            `group_size` then means nothing.
        has_int8_inputs: Whether the checkpoint was made for products of integers: its inputs are
            quantized to 8 bits as the product begins.
    """

    codes: Tensor
    scales: Tensor
    table: Tensor
    group_size: int
    offsets: Tensor | None = None
    groups: Tensor | None = None
    has_int8_inputs: bool = False

    @property
    def shape(self) -> torch.Size:
        """Shape of the weight, `[N, K]`."""
        return self.codes.shape

    def rows(self, indices: Tensor) -> QuantizedWeight:
        """Return some outputs, in the order of their indices, `[n]` int64."""
        every = indices.new_ones(self.shape[0]).cumsum(0) - 1
        if len(indices) == len(every) and bool((indices == every).all()):
            return self  # without a copy
        return replace(
            self,
            codes=self.codes[indices],
            scales=self.scales[indices],
            offsets=None if self.offsets is None else self.offsets[indices],
        )

    def columns(self, columns: range) -> QuantizedWeight:
        """Return consecutive inputs of all outputs."""
        if len(columns) == self.shape[1]:
            return self
        start, stop = columns.start, columns.stop
        codes = self.codes[:, start:stop]
        if self.groups is not None or start % self.group_size:
            return replace(self, codes=codes, groups=self.group_indices()[start:stop])
        groups = slice(start // self.group_size, -(-stop // self.group_size))
        return replace(
            self,
            codes=codes,
            scales=self.scales[:, groups],
            offsets=None if self.offsets is None else self.offsets[:, groups],
        )

    def padded(self, num_rows: int) -> QuantizedWeight:
        """Return as many outputs; those behind the weight's own are zero."""
        missing = num_rows - self.shape[0]
        if not missing:
            return self
        return replace(
            self,
            codes=_with_zeros(self.codes, missing),
            scales=_with_zeros(self.scales, missing),
            offsets=None if self.offsets is None else _with_zeros(self.offsets, missing),
        )

    def group_indices(self) -> Tensor:
        """Return the group of each input, `[K]` int64."""
        if self.groups is not None:
            return self.groups
        ones = self.codes.new_ones(self.shape[1]).long()
        return (ones.cumsum(0) - 1) // self.group_size

    def dequantized(self) -> Tensor:
        """Return the weight `[N, K]` in float32."""
        out = self.scales.new_empty(self.shape)
        groups, step = self.group_indices(), max(1, CHUNK_ELEMENTS // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            some = slice(start, start + step)
            values = self.table[self.codes[some].int()].mul_(self.scales[some][:, groups])
            if self.offsets is not None:
                values.add_(self.offsets[some][:, groups])
            out[some] = values
        return out


def _with_zeros(tensor: Tensor, num_rows: int) -> Tensor:
    padded = tensor.new_zeros(len(tensor) + num_rows, tensor.shape[1])
    padded[: len(tensor)] = tensor
    return padded


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedStack:
    """Weights of several experts that a checkpoint has in one tensor, decoded one by one.

    Attributes:
        num_weights: Number of experts.
        decode: Function from an expert's index to its weight.
    """

    num_weights: int
    decode: Callable[[int], QuantizedWeight]

    def __iter__(self) -> Iterator[QuantizedWeight]:
        """Yield the weight of each expert."""
        return map(self.decode, range(self.num_weights))
