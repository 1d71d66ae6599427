"""Rows of guided requests and of their companions: which belong together in a batch.

The logits after a companion's prompt are in the batch beside those of the request that it guides,
and the token that is sampled for that request is the companion's next token too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.errors import RequestFailedError
from quire.worker.batch.slots import SlotInfo
from quire.worker.device.copies import upload


@dataclass(frozen=True, slots=True)
class CompanionRows:
    """The pairs of a batch, on the device.

    Attributes:
        guided: Rows that have a companion, `[G]` int64.
        companions: Row of the companion of each, `[G]` int64.
        sources: Row whose token each row gets, `[N]` int64: of a companion, the guided one.
    """

    guided: Tensor
    companions: Tensor
    sources: Tensor

    @classmethod
    def of(
        cls, slots: Sequence[int], infos: Sequence[SlotInfo], device: torch.device
    ) -> CompanionRows | None:
        """Return the pairs of the rows of some slots; None if there are none.

        Raises:
            RequestFailedError: The companion of a row is not in the batch: it has failed.
        """
        if all(info.companion_slot is None for info in infos):
            return None
        pairs = _companion_rows(slots, infos)
        num_guided = sum(info.companion_slot is not None for info in infos)
        if len(pairs) < num_guided:
            raise RequestFailedError("the companion of a guided request failed")
        sources = np.arange(len(slots))
        sources[list(pairs.values())] = list(pairs)
        guided, companions = (np.array(rows) for rows in (list(pairs), list(pairs.values())))
        return cls(*(upload(rows, device) for rows in (guided, companions, sources)))


def rows_alone(slots: Sequence[int], infos: Sequence[SlotInfo]) -> list[list[int]]:
    """Split the rows of some slots: each alone, or with that of its companion."""
    pairs = _companion_rows(slots, infos)
    companions = set(pairs.values())
    return [
        [row, pairs[row]] if row in pairs else [row]
        for row in range(len(slots))
        if row not in companions
    ]


def _companion_rows(slots: Sequence[int], infos: Sequence[SlotInfo]) -> dict[int, int]:
    """Return the row of the companion of each row that has one in the batch."""
    row_of = {slot: row for row, slot in enumerate(slots)}
    return {
        row: row_of[info.companion_slot]
        for row, info in enumerate(infos)
        if info.companion_slot in row_of
    }
