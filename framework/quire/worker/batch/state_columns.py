"""Device columns of the numbers that sampler steps carry from token to token of a request.

The host writes a slot's numbers when the slot is assigned. After that each step of the engine
writes those of the rows that it has sampled, on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from quire.worker.batch.device_tables import DeviceTables


class StateColumns:
    """Columns of carried states.

    Args:
        names: Names of the states.
        num_slots: Number of slots, the padding slot included.
        device: Device of the columns.

    Attributes:
        device: Name of a state -> `[num_slots]` float32.
    """

    def __init__(self, names: Sequence[str], num_slots: int, device: torch.device) -> None:
        self._names = tuple(names)
        self._tables = DeviceTables(num_slots, [len(names)], device)
        self._cells = self._tables.tables[0].view(torch.float32)  # [num_slots, S]
        self.device = {name: self._cells[:, index] for index, name in enumerate(names)}

    def write(self, slot: int, values: Mapping[str, float]) -> None:
        """Queue the states of a request for its slot, 0 for those left out; `push` sends them."""
        if self._names:
            cells = np.array([values.get(name, 0.0) for name in self._names], np.float32)
            self._tables.write(0, slot, 0, cells.view(np.int32).tolist())

    def push(self) -> None:
        """Send the queued states, after the work queued on the device."""
        self._tables.push()

    def put(
        self,
        slots: Tensor,  # [M] int64; no slot twice
        names: Sequence[str],  # consecutive states
        values: Tensor,  # [M, len(names)] float32
    ) -> None:
        """Write states that are on the device."""
        first = self._names.index(names[0])
        self._cells[:, first : first + len(names)].index_copy_(0, slots, values)
