"""Rotary embedding: a table of angles by position, and the rotation of heads by a step's angles."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from quire.layers.attention.rope_frequencies import attention_factor, frequencies
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
        head_dim: Elements per head, in the order that `head_order` returns for the embedding.
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
        by_pair = frequencies(head_dim, rope, max_positions)
        angles = torch.outer(positions, by_pair)  # [P, D / 2]
        factor = torch.where(by_pair > 0, attention_factor(rope, max_positions), 1.0)
        cos, sin = angles.cos() * factor, angles.sin() * factor
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
