"""The vocabulary over a tensor-parallel group: this device's shard, and the exchange of results."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quire.errors import SettingsError
from quire.layers.parallel import TensorParallelGroup


class VocabularyShard:
    """Shard of the vocabulary on one device: equal ranges of token ids, in the order of the ranks.

    Args:
        vocab_size: V.
        tp: Devices that the vocabulary is sharded over.

    Attributes:
        vocab_size: V.
        rows: Token ids of this device, padded to the size that all devices have; ids from V on are
            padding.
        token_ids: Token ids of this device, without padding.
        is_whole: Whether this device has the whole vocabulary.

    Raises:
        SettingsError: A device would have no token.
    """

    def __init__(self, vocab_size: int, tp: TensorParallelGroup) -> None:
        _check_size(vocab_size, tp.size)
        size = _shard_size(vocab_size, tp.size)
        self.vocab_size = vocab_size
        self.rows = range(tp.rank * size, (tp.rank + 1) * size)
        self.token_ids = range(self.rows.start, min(self.rows.stop, vocab_size))
        self.is_whole = tp.size == 1
        self._tp = tp

    def gather(self, logits: Tensor) -> Tensor:  # [N, len(token_ids)] -> [N, V]
        """Return whole rows of logits, on every device; on a single device `logits` itself."""
        if self.is_whole:
            return logits
        if num_padding := len(self.rows) - len(self.token_ids):
            logits = functional.pad(logits, (0, num_padding))
        return self._tp.all_gather(logits, -1)[:, : self.vocab_size]

    def best(
        self,
        scores: Tensor,  # [N] float32, the largest of each row in this shard
        token_ids: Tensor,  # [N] int64, their tokens
    ) -> tuple[Tensor, Tensor]:
        """Return the largest score of each row over all devices, and its token id.

        NaN is the largest score; of equal scores the one with the lowest token id is taken. Devices
        exchange 8 bytes per row.
        """
        mine = torch.stack((scores.view(torch.int32), token_ids.to(torch.int32)))  # [2, N]
        scores, token_ids = self._tp.all_gather(mine, 0).view(-1, 2, len(scores)).unbind(1)
        scores = scores.view(torch.float32)  # [tp, N], as the ids
        # The first of equal ones is that of the lowest rank, which has the lowest ids.
        rank = scores.argmax(0, keepdim=True)
        return scores.gather(0, rank)[0], token_ids.gather(0, rank)[0].long()


def _check_size(vocab_size: int, tp_size: int) -> None:
    """Check that every device has a token.

    Raises:
        SettingsError: One has none.
    """
    if _leaves_none_out(vocab_size, tp_size):
        return
    largest = next(n for n in range(tp_size, 0, -1) if _leaves_none_out(vocab_size, n))
    raise SettingsError(
        f"a vocabulary of {vocab_size} tokens cannot be divided over tensor_parallel_size="
        f"{tp_size} devices: some would have no token; use {largest} or fewer"
    )


def _leaves_none_out(vocab_size: int, tp_size: int) -> bool:
    return (tp_size - 1) * _shard_size(vocab_size, tp_size) < vocab_size


def _shard_size(vocab_size: int, tp_size: int) -> int:
    """Return the number of rows of each shard, padding included."""
    return -(-vocab_size // tp_size)
