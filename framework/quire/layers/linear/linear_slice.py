"""One of the checkpoint's matrices in a linear layer, and what of it this device has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearSlice:
    """One matrix of the checkpoint, and the rows of it that this device has.

    Attributes:
        name: Last name of the checkpoint's module: `q_proj`.
        num_rows: Number of rows in the checkpoint.
        rows: Rows of this device.
        head_order: Checkpoint's index of each row within a head; None: the rows stay in order.
    """

    name: str
    num_rows: int
    rows: range
    head_order: Sequence[int] | None = None

    def cut(self, tensor: Tensor) -> Tensor:
        """Return this device's rows of a checkpoint's tensor, `[num_rows, ...]`."""
        mine = tensor[self.rows.start : self.rows.stop]
        if self.head_order is None:
            return mine
        heads = mine.reshape(-1, len(self.head_order), *mine.shape[1:])
        return heads[:, list(self.head_order)].flatten(0, 1)
