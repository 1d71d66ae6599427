"""Log probabilities of sampled rows: computed on the device, and copied to the host later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.messages import TokenLogprobs
from quire.worker.device.copies import HostCopier, HostCopy, upload

MIN_LOGPROB = -9999.0  # JSON has no -inf
MAX_LISTED = 64  # columns that are converted to lists as a whole

_Row = list[Any] | NDArray[Any]


@dataclass(slots=True)
class RowLogprobs:
    """Log probabilities on the device, for the N of some rows that request them.

    Attributes:
        token_ids: Chosen token, the most likely tokens and the named tokens, `[N, 1 + max_top +
            max_named]`; a row with fewer of them has others in their columns.
        values: Log probabilities of these, in the same shape.
        ranks: Rank of the chosen token, `[N]`.
        columns: Columns of each of the rows beside the first; None for a row without log
            probabilities.
        copy: Copy to the host, once started.
    """

    token_ids: Tensor
    values: Tensor
    ranks: Tensor
    columns: Sequence[slice | None]
    copy: HostCopy | None = None

    def start_copy(self, copier: HostCopier) -> None:
        """Start to copy them to the host."""
        self.copy = copier.begin(self.token_ids, self.values, self.ranks)

    def read(self) -> list[TokenLogprobs | None]:
        """Wait for the copy, and return the log probabilities; None for rows without any."""
        tensors = (self.token_ids, self.values, self.ranks)
        ids, values, ranks = tensors if self.copy is None else self.copy.wait()
        # Lists are the fastest to cut, but those of wide rows would be made for nothing.
        is_wide = ids.shape[1] > MAX_LISTED
        matrices = [each.cpu().numpy() if is_wide else each.tolist() for each in (ids, values)]
        rows = zip(*matrices, ranks.tolist(), strict=True)
        return [
            None if columns is None else _token_logprobs(columns, *next(rows))
            for columns in self.columns
        ]


def row_logprobs(
    logits: Tensor,  # [N, V] float32
    token_ids: Tensor,  # [N], the chosen token of each row
    num_top: Sequence[int | None],
    named: Sequence[Sequence[int]] = (),
    *,
    as_logits: bool = False,
) -> RowLogprobs:
    """Return the log probability of each row's token, and those of the most likely tokens.

    Args:
        logits: Logits of the rows with log probabilities.
        token_ids: Token at the position that each of these rows predicts.
        num_top: Number of most likely tokens for each row; None for a row without log
            probabilities, which has no row in `logits`.
        named: Tokens that each row reports instead of the most likely ones, if it names any; empty
            if no row does.
        as_logits: Whether the values are the logits themselves.
    """
    token_ids = token_ids.long()
    max_top = min(max(count for count in num_top if count is not None), logits.shape[1])
    logprobs = logits if as_logits else logits.log_softmax(-1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))  # [N, 1]
    ranks = (logprobs > chosen).sum(1) + 1
    top = logprobs.topk(max_top)
    all_ids, all_values = [token_ids.unsqueeze(1), top.indices], [chosen, top.values]
    if any(named):
        wanted = [ids for ids, count in zip(named, num_top, strict=True) if count is not None]
        table = np.zeros((len(wanted), max(map(len, wanted))), np.int64)
        for row, ids in enumerate(wanted):
            table[row, : len(ids)] = ids
        all_ids.append(upload(table, logits.device))
        all_values.append(logprobs.gather(1, all_ids[-1]))
    return RowLogprobs(
        token_ids=torch.cat(all_ids, 1),
        values=torch.cat(all_values, 1).clamp_min(MIN_LOGPROB),
        ranks=ranks,
        columns=_columns(num_top, named, max_top),
    )


def _columns(
    num_top: Sequence[int | None], named: Sequence[Sequence[int]], max_top: int
) -> list[slice | None]:
    """Return the columns of each row: its most likely tokens, or those that it names."""
    columns = [None if count is None else slice(1, 1 + min(count, max_top)) for count in num_top]
    for row, ids in enumerate(named):
        if ids and columns[row] is not None:
            columns[row] = slice(1 + max_top, 1 + max_top + len(ids))
    return columns


def _token_logprobs(columns: slice, ids: _Row, values: _Row, rank: int) -> TokenLogprobs:
    return TokenLogprobs(_chosen_and(columns, ids), _chosen_and(columns, values), rank)


def _chosen_and(columns: slice, row: _Row) -> list[Any]:
    """Return the first element, that of the chosen token, and those of some columns."""
    if isinstance(row, list):
        return row[:1] + row[columns]
    return [*row[:1].tolist(), *row[columns].tolist()]
