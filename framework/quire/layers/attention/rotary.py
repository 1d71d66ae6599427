"""Rotary embedding: a table of angles by position, and the rotation of heads by a step's angles."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.context import LayerContext
from quire.layers.layer import Layer


class Rotation:
    """The angles of a step's tokens, gathered from the table on first access.

    The sines of the first half include the minus sign of the rotation. So a rotation is one product
    with the head, and one with the head whose halves are swapped.

    Attributes:
        table: `[max_positions, 2, D]`: the cosines and sines of each position.
        positions: `[T]` int64, row of the table for each token.
    """

    def __init__(self, table: Tensor, positions: Tensor) -> None:
        self.table = table
        self.positions = positions

    @property
    def cos(self) -> Tensor:
        """The tokens' cosines, `[T, 1, D]`."""
        return self._rows[0]

    @property
    def sin(self) -> Tensor:
        """The tokens' sines, `[T, 1, D]`."""
        return self._rows[1]

    @cached_property
    def _rows(self) -> tuple[Tensor, ...]:
        return self.table.index_select(0, self.positions).chunk(2, 1)


class RotaryEmbedding(Layer):
    """The table of a rotary embedding (Su et al., 2021), computed in float32.

    Args:
        head_dim: Elements per head; all are rotated, the first half against the second.
        max_positions: Number of rows of the table.
        rope: Wavelengths and their scaling.
        context: Settings to build the layer with.
    """

    table: Tensor  # [max_positions, 2, D]

    def __init__(
        self, head_dim: int, max_positions: int, rope: RopeParameters, context: LayerContext
    ) -> None:
        super().__init__()
        positions = torch.arange(max_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies(head_dim, rope))  # [P, D / 2]
        cos, sin = angles.cos(), angles.sin()
        table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)
        table = table.to(device=context.device, dtype=context.dtype)
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Tensor) -> Rotation:
        """Return the angles for positions `[T]`."""
        return Rotation(self.table, positions)


def rotate(heads: Tensor, rotation: Rotation) -> Tensor:
    """Return a new tensor with each head of `[T, any, D]` rotated by its token's angles."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * rotation.cos, swapped, rotation.sin)


def frequencies(head_dim: int, rope: RopeParameters) -> Tensor:
    """Return the angle per position of each pair of elements, `[D / 2]` float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor
    return _llama3(plain, rope) if rope.kind == "llama3" else plain


def _llama3(plain: Tensor, rope: RopeParameters) -> Tensor:
    """Scale long waves, keep short ones, and interpolate between them (Llama 3.1)."""
    turns = rope.original_max_positions * plain / (2 * math.pi)  # within the original context
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1.0 - kept) * plain / rope.factor
