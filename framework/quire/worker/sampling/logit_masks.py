"""Logit masks of grammars, and of stop tokens before `min_tokens` is reached.

The host sends packed bitmasks and pairs of row and token; the device sets these logits to -inf.
"""

from collections.abc import Callable, Sequence, Set

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.layers.vocabulary import VocabularyShard
from quire.messages import RowBitmask
from quire.native.layer_kernels import cpu_layers
from quire.worker.batch.slots import SlotTables
from quire.worker.device.copies import upload

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
        elif kernels == "native":
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
        shard: VocabularyShard | None = None,
    ) -> None:
        """Mask the tokens that the grammars of these rows forbid; masks of other slots are skipped.

        Args:
            logits: Logits of the rows.
            slots: Slots of the rows.
            masks: Masks for the whole vocabulary.
            shard: Shard of the vocabulary whose logits these are; None: the whole vocabulary.

        Raises:
            ValueError: A grammar's mask has fewer bits than there are tokens.
        """
        row_of = {slot: row for row, slot in enumerate(slots)}
        masks = [mask for mask in masks if mask.slot in row_of]
        if not masks:
            return
        joined = bytearray().join(mask.words for mask in masks)
        words = np.frombuffer(joined, np.int32).reshape(len(masks), -1)
        num_bits = words.shape[1] * 32
        vocab_size = logits.shape[1] if shard is None else shard.vocab_size
        if num_bits < vocab_size:
            raise ValueError(f"a grammar's mask has {num_bits} bits for {vocab_size} tokens")
        if shard is not None:
            words = words_of_shard(words, shard.token_ids)
        rows = np.array([row_of[mask.slot] for mask in masks])
        self._mask_logits(logits, upload(rows, logits.device), upload(words, logits.device))

    def mask_stops(
        self,
        logits: Tensor,  # [N, V] float32, in place
        slots: Sequence[int],
        grammar_slots: Set[int],
        shard: VocabularyShard | None = None,
    ) -> None:
        """Mask the stop tokens of completions that are shorter than `min_tokens`.

        Args:
            logits: Logits of the rows.
            slots: Slots of the rows.
            grammar_slots: Slots that have a grammar, which takes precedence.
            shard: Shard of the vocabulary whose logits these are; None: the whole vocabulary.
        """
        token_ids = range(logits.shape[1]) if shard is None else shard.token_ids
        pairs = [
            (row, token_id - token_ids.start)
            for row, slot in enumerate(slots)
            if slot not in grammar_slots and self.is_too_short(slot)
            for token_id in self._tables.info_of(slot).stop_token_ids
            if token_id in token_ids
        ]
        if pairs:
            rows, columns = upload(np.array(pairs).T.copy(), logits.device)
            # Not `logits[...] = -inf`: that copies a value from the host and waits for the device.
            logits.index_put_((rows, columns), logits.new_full((), -torch.inf))


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


def words_of_shard(
    words: NDArray[np.int32],  # [M, at least ceil(V / 32)]
    token_ids: range,
) -> NDArray[np.int32]:  # [M, ceil(len(token_ids) / 32)]
    """Return the bits of a shard's tokens, moved to the beginning of each row."""
    first, shift = divmod(token_ids.start, 32)
    last = first - (-len(token_ids) // 32)
    bits = words.view(np.uint32)
    low = bits[:, first:last] >> shift
    if not shift:
        return low.view(np.int32)
    high = np.pad(bits, ((0, 0), (0, 1)))[:, first + 1 : last + 1] << (32 - shift)
    return (low | high).view(np.int32)
