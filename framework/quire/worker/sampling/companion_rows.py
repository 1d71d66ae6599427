"""Rows of guided requests and of their companions: which belong together in a batch.

The logits after a companion's prompt are in the batch beside those of the request that it guides,
and the token that is sampled for that request is the companion's next token too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.errors import RequestFailedError
from quire.worker.batch.slots import SlotInfo


@dataclass(frozen=True, slots=True)
class CompanionRows:
    """The pairs of a batch.

    Attributes:
        companions: Row of each row's companion; the row itself if it has none.
        sources: Row whose token each row gets: of a companion, that of the guided request.
    """

    companions: Sequence[int]
    sources: Sequence[int]

    @classmethod
    def of(cls, slots: Sequence[int], infos: Sequence[SlotInfo]) -> CompanionRows | None:
        """Return the pairs of the rows of some slots; None if there are none.

        Raises:
            RequestFailedError: The companion of a row is not in the batch: it has failed.
        """
        pairs = {slot: info.companion_slot for slot, info in zip(slots, infos, strict=True)}
        if all(companion is None for companion in pairs.values()):
            return None
        row_of = {slot: row for row, slot in enumerate(slots)}
        companions, sources = list(range(len(slots))), list(range(len(slots)))
        for slot, companion in pairs.items():
            if companion is None:
                continue
            if companion not in row_of:
                raise RequestFailedError("the companion of a guided request failed")
            companions[row_of[slot]] = row_of[companion]
            sources[row_of[companion]] = row_of[slot]
        return cls(companions, sources)


def rows_alone(slots: Sequence[int], infos: Sequence[SlotInfo]) -> list[list[int]]:
    """Split the rows of some slots: each alone, or with that of its companion."""
    row_of = {slot: row for row, slot in enumerate(slots)}
    companion_of = {
        row: row_of[info.companion_slot]
        for row, info in enumerate(infos)
        if info.companion_slot in row_of
    }
    companions = set(companion_of.values())
    return [
        [row, companion_of[row]] if row in companion_of else [row]
        for row in range(len(slots))
        if row not in companions
    ]
