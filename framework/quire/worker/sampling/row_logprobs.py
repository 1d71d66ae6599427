"""Log probabilities of sampled rows: computed on the device, and copied to the host later."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.messages import TokenLogprobs
from quire.worker.device.copies import HostCopier, HostCopy

MIN_LOGPROB = -9999.0  # JSON has no -inf


@dataclass(slots=True)
class RowLogprobs:
    """Log probabilities on the device, for the N of some rows that request them.

    Attributes:
        token_ids: Chosen token and the most likely tokens, `[N, 1 + max_top]`.
        values: Log probabilities of these, in the same shape.
        ranks: Rank of the chosen token, `[N]`.
        num_top: Number of most likely tokens for each of the rows; None for a row without log
            probabilities.
        copy: Copy to the host, once started.
    """

    token_ids: Tensor
    values: Tensor
    ranks: Tensor
    num_top: Sequence[int | None]
    copy: HostCopy | None = None

    def start_copy(self, copier: HostCopier) -> None:
        """Start to copy them to the host."""
        self.copy = copier.begin(self.token_ids, self.values, self.ranks)

    def read(self) -> list[TokenLogprobs | None]:
        """Wait for the copy, and return the log probabilities; None for rows without any."""
        tensors = (self.token_ids, self.values, self.ranks)
        arrived = tensors if self.copy is None else self.copy.wait()
        rows = zip(*(tensor.tolist() for tensor in arrived), strict=True)
        return [
            None if count is None else _token_logprobs(count, *next(rows)) for count in self.num_top
        ]


def row_logprobs(
    logits: Tensor,  # [N, V] float32
    token_ids: Tensor,  # [N], the chosen token of each row
    num_top: Sequence[int | None],
) -> RowLogprobs:
    """Return the log probability of each row's token, and those of the most likely tokens.

    Args:
        logits: Unprocessed logits of the model, for the rows with log probabilities.
        token_ids: Token at the position that each of these rows predicts.
        num_top: Number of most likely tokens for each row; None for a row without log
            probabilities, which has no row in `logits`.
    """
    token_ids = token_ids.long()
    max_top = max(count for count in num_top if count is not None)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))  # [N, 1]
    ranks = (logprobs > chosen).sum(1) + 1
    top = logprobs.topk(max_top)
    return RowLogprobs(
        token_ids=torch.cat((token_ids.unsqueeze(1), top.indices), 1),
        values=torch.cat((chosen, top.values), 1).clamp_min(MIN_LOGPROB),
        ranks=ranks,
        num_top=num_top,
    )


def _token_logprobs(count: int, ids: list[int], values: list[float], rank: int) -> TokenLogprobs:
    return TokenLogprobs(ids[: count + 1], values[: count + 1], rank)
