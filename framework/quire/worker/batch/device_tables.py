"""Tables of the device with a row a slot: the host sends the cells that change, all in one copy.

One row more than there are slots is the spare one: rows of padding read it and write to it, and
nobody looks at what is there.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.worker.device.uploads import upload


class DeviceTables:
    """Tables of int32 in one piece of memory, so that one kernel writes to all of them.

    Args:
        num_rows: Of each table.
        widths: Cells a row, for each table.
        device: Where they lie.

    Attributes:
        cells: All of them, `[num_cells]` int32.
        tables: Views of them, `[num_rows, width]`.
        starts: Where each table begins in `cells`.
    """

    def __init__(self, num_rows: int, widths: Sequence[int], device: torch.device) -> None:
        sizes = [num_rows * width for width in widths]
        self.starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self.cells = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self.tables = [
            self.cells[start : start + size].view(num_rows, width)
            for start, size, width in zip(self.starts, sizes, widths, strict=True)
        ]
        self._widths = list(widths)
        self._changes: dict[tuple[int, int], tuple[int, Sequence[int]]] = {}

    def write(self, table: int, row: int, column: int, values: Sequence[int]) -> None:
        """Note that a row gets new cells from a column on; `push` sends them."""
        if column + len(values) > self._widths[table]:
            raise IndexError(
                f"{len(values)} cells from column {column} on, and a row has {self._widths[table]}"
            )
        if (table, row) in self._changes:  # cells of one copy are written in no order
            self.push()
        start = self.starts[table] + row * self._widths[table] + column
        self._changes[table, row] = (start, values)

    def gather(
        self, table: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Tensor:  # [N] int32
        """Return what stands in some cells on the device."""
        return self.cells.index_select(0, self._places(table, rows, columns))

    def put(
        self,
        table: int,
        rows: NDArray[np.int64],  # [N]; no cell twice
        columns: NDArray[np.int64],  # [N]
        values: Tensor,  # [N] int32, on the device
    ) -> None:
        """Write to some cells what the host need not know."""
        self.cells.index_copy_(0, self._places(table, rows, columns), values)

    def push(self) -> None:
        """Send what changed, behind what the device has been told to do."""
        if not self._changes:
            return
        changes = [change for change in self._changes.values() if change[1]]
        self._changes.clear()
        if not changes:
            return
        counts = np.array([len(values) for _, values in changes])
        starts = np.array([start for start, _ in changes])
        num_cells = int(counts.sum())
        first = np.cumsum(counts) - counts
        message = np.empty(3 * num_cells, np.int32)  # places of 8 bytes, then values of 4
        message[: 2 * num_cells].view(np.int64)[:] = np.arange(num_cells) + np.repeat(
            starts - first, counts
        )
        message[2 * num_cells :] = list(chain.from_iterable(values for _, values in changes))
        sent = upload(message, self.cells.device)
        self.cells.index_copy_(0, sent[: 2 * num_cells].view(torch.int64), sent[2 * num_cells :])

    def _places(
        self, table: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Tensor:  # [N] int64
        return upload(self.starts[table] + rows * self._widths[table] + columns, self.cells.device)
