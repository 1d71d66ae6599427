"""Logit masks of grammars, and of stop tokens before `min_tokens` is reached.

The host sends packed bitmasks and pairs of row and token; the device sets these logits to -inf.
"""

from collections.abc import Callable, Sequence, Set

import numpy as np
import torch
from torch import Tensor

from quire.messages import RowBitmask
from quire.native.layer_kernels import cpu_layers
from quire.worker.batch.slots import SlotTables
from quire.worker.device.uploads import upload

MaskLogits = Callable[[Tensor, Tensor, Tensor], None]


class LogitMasks:
    """Masks the logits of the rows to sample.

    Args:
        tables: Slot tables.
        kernels: Kernels to use: "torch", "triton" or "native".
    """

    def __init__(self, tables: SlotTables, kernels: str) -> None:
        self._tables = tables
        self._mask_logits: MaskLogits = mask_logits
        if kernels == "triton":
            from quire.kernels import bitmask  # loads Triton

            self._mask_logits = bitmask.mask_logits
        elif kernels == "native" and cpu_layers.LIBRARY.is_available():
            self._mask_logits = cpu_layers.LogitMask()

    def is_too_short(self, slot: int) -> bool:
        """Whether the slot's completion is shorter than `min_tokens`, so that it may not end."""
        info = self._tables.info_of(slot)
        if not info.min_tokens or not info.stop_token_ids:
            return False
        num_generated = int(self._tables.num_known[slot]) - info.num_prompt_tokens
        return num_generated < info.min_tokens

    def mask_grammars(
        self,
        logits: Tensor,  # [N, V] float32, in place
        slots: Sequence[int],
        masks: Sequence[RowBitmask],
    ) -> None:
        """Mask the tokens that the grammars of these rows forbid; masks of other slots are skipped.

        Raises:
            ValueError: A grammar's mask has fewer bits than there are tokens.
        """
        row_of = {slot: row for row, slot in enumerate(slots)}
        masks = [mask for mask in masks if mask.slot in row_of]
        if not masks:
            return
        joined = bytearray().join(mask.words for mask in masks)
        words = np.frombuffer(joined, np.int32).reshape(len(masks), -1)
        num_bits, vocab_size = words.shape[1] * 32, logits.shape[1]
        if num_bits < vocab_size:
            raise ValueError(f"a grammar's mask has {num_bits} bits for {vocab_size} tokens")
        rows = np.array([row_of[mask.slot] for mask in masks])
        self._mask_logits(logits, upload(rows, logits.device), upload(words, logits.device))

    def mask_stops(
        self,
        logits: Tensor,  # [N, V] float32, in place
        slots: Sequence[int],
        grammar_slots: Set[int],
    ) -> None:
        """Mask the stop tokens of completions that are shorter than `min_tokens`.

        Args:
            logits: Logits of the rows.
            slots: Slots of the rows.
            grammar_slots: Slots that have a grammar, which takes precedence.
        """
        pairs = [
            (row, token_id)
            for row, slot in enumerate(slots)
            if slot not in grammar_slots and self.is_too_short(slot)
            for token_id in self._tables.info_of(slot).stop_token_ids
            if token_id < logits.shape[1]
        ]
        if pairs:
            rows, token_ids = upload(np.array(pairs).T.copy(), logits.device)
            # Not `logits[...] = -inf`: that copies a value from the host and waits for the device.
            logits.index_put_((rows, token_ids), logits.new_full((), -torch.inf))


def mask_logits(
    logits: Tensor,  # [N, V] float32, in place
    rows: Tensor,  # [M] int64
    words: Tensor,  # [M, at least ceil(V / 32)] int32
) -> None:
    """Set the logits of row `rows[i]` to -inf where the bit of `words[i]` is 0."""
    bit_of = torch.arange(8, dtype=torch.uint8, device=words.device)
    bits = words.view(torch.uint8).unsqueeze(2).bitwise_right_shift(bit_of) & 1  # [M, bytes, 8]
    allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
    masked = logits.index_select(0, rows).masked_fill_(~allowed, -torch.inf)
    logits.index_copy_(0, rows, masked)
