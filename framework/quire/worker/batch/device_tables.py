"""Device tables with one row per slot: the host sends all changed cells in one copy.

An additional row is that of the padding slot: padding reads it and writes to it, and its content is
never used.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.worker.device.copies import upload


class DeviceTables:
    """Tables of int32 in one tensor, so that one kernel writes to all of them.

    Args:
        num_rows: Number of rows of each table.
        widths: Number of cells per row, for each table.
        device: Device of the tables.

    Attributes:
        cells: Cells of all tables, `[num_cells]` int32.
        tables: Views of the tables, `[num_rows, width]`.
        starts: Index in `cells` at which each table begins.
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
        """Queue new values for a row from a column on; `push` sends them."""
        if column + len(values) > self._widths[table]:
            raise IndexError(
                f"{len(values)} cells from column {column} on, but a row has {self._widths[table]}"
            )
        if (table, row) in self._changes:  # one copy has no write order
            self.push()
        start = self.starts[table] + row * self._widths[table] + column
        self._changes[table, row] = (start, values)

    def gather(
        self, table: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Tensor:  # [N] int32
        """Return the values of some cells on the device."""
        return self.cells.index_select(0, self._cell_indexes(table, rows, columns))

    def put(
        self,
        table: int,
        rows: NDArray[np.int64],  # [N]; no cell twice
        columns: NDArray[np.int64],  # [N]
        values: Tensor,  # [N] int32, on the device
    ) -> None:
        """Write values that are on the device to some cells."""
        self.cells.index_copy_(0, self._cell_indexes(table, rows, columns), values)

    def push(self) -> None:
        """Send the queued changes, after the work queued on the device."""
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
        message = np.empty(3 * num_cells, np.int32)  # int64 indexes, then int32 values
        message[: 2 * num_cells].view(np.int64)[:] = np.arange(num_cells) + np.repeat(
            starts - first, counts
        )
        message[2 * num_cells :] = list(chain.from_iterable(values for _, values in changes))
        sent = upload(message, self.cells.device)
        self.cells.index_copy_(0, sent[: 2 * num_cells].view(torch.int64), sent[2 * num_cells :])

    def _cell_indexes(
        self, table: int, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Tensor:  # [N] int64
        return upload(self.starts[table] + rows * self._widths[table] + columns, self.cells.device)
