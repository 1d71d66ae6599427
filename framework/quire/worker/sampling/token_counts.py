"""Counts of the tokens of each completion, for penalties: one row per slot, kept incrementally.

Before a step that reads them, the tokens that each slot has gained since the last such step are
added. Where they came from does not matter: sampled here, by a captured step or on another pipeline
stage. A slot that is assigned or whose counted tokens are patched is counted anew. The table is
allocated when the first request needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.worker.batch.slots import TOKENS, SlotTables
from quire.worker.device.copies import upload


class TokenCounts:
    """Counts of the sampled tokens of each slot.

    Args:
        tables: Slot tables.
        vocab_size: V.
    """

    def __init__(self, tables: SlotTables, vocab_size: int) -> None:
        self._tables = tables
        self._vocab_size = vocab_size
        self._counts: Tensor | None = None  # [slots + 1, V] int32
        self._num_counted: Tensor | None = None  # [slots + 1] int64

    def update(self, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Count all known tokens of these slots.

        Returns:
            Counts by slot, `[slots + 1, V]` int32, and the number of tokens of each slot, prompt
            included, after which they end, `[slots + 1]` int64.
        """
        tables, own = self._tables, np.unique(np.asarray(slots, np.int64))
        if self._counts is None or self._num_counted is None:
            num_rows = tables.padding_slot + 1
            self._counts = torch.zeros(
                num_rows, self._vocab_size, dtype=torch.int32, device=tables.device
            )
            self._num_counted = torch.zeros(num_rows, dtype=torch.int64, device=tables.device)
        fresh = own[tables.num_counted[own] == 0]
        if len(fresh):
            self._counts.index_fill_(0, upload(fresh, tables.device), 0)
        prompts = np.array([tables.info_of(int(slot)).num_prompt_tokens for slot in own], np.int64)
        starts = np.maximum(tables.num_counted[own], prompts)
        added = np.maximum(tables.num_known[own] - starts, 0)
        if added.any():
            self._add(own, starts, added)
        tables.num_counted[own] = tables.num_known[own]
        ends = upload(tables.num_known[own], tables.device)
        self._num_counted.index_copy_(0, upload(own, tables.device), ends)
        return self._counts, self._num_counted

    def _add(
        self, slots: NDArray[np.int64], starts: NDArray[np.int64], added: NDArray[np.int64]
    ) -> None:  # [M] each
        """Count `added` tokens of each slot from its position `starts` on."""
        if self._counts is None:
            raise RuntimeError("the table of counts is not allocated")
        rows = np.repeat(slots, added)
        offsets = np.arange(len(rows)) - np.repeat(np.cumsum(added) - added, added)
        token_ids = self._tables.device_tables.gather(
            TOKENS, rows, np.repeat(starts, added) + offsets
        ).long()
        is_token = (token_ids >= 0) & (token_ids < self._vocab_size)  # a broken sampler's is not
        cells = upload(rows * self._vocab_size, token_ids.device) + token_ids * is_token
        self._counts.view(-1).index_add_(0, cells, is_token.int())
