"""Log probabilities of rows: computed on the device, and read when somebody can wait for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.messages import TokenLogprobs
from quire.worker.device.host_copy import HostCopier, HostCopy

MIN_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclass(slots=True)
class RowLogprobs:
    """Log probabilities of some rows, on the device: of the N rows that asked.

    Attributes:
        token_ids: `[N, 1 + most]`, the chosen token and then the likeliest.
        values: The same shape.
        ranks: `[N]`, of the chosen token.
        wanted: How many others each row wants, those that did not ask included; None: it did not.
        copy: On its way to the host, once it was started.
    """

    token_ids: Tensor
    values: Tensor
    ranks: Tensor
    wanted: Sequence[int | None]
    copy: HostCopy | None = None

    def start_copy(self, copier: HostCopier) -> None:
        """Begin to bring them to the host."""
        self.copy = copier.begin(self.token_ids, self.values, self.ranks)

    def read(self) -> list[TokenLogprobs | None]:
        """Return them when they have arrived; None for each row that did not ask."""
        tensors = (self.token_ids, self.values, self.ranks)
        arrived = tensors if self.copy is None else self.copy.wait()
        rows = zip(*(tensor.tolist() for tensor in arrived), strict=True)
        return [None if count is None else _answer(count, *next(rows)) for count in self.wanted]


def row_logprobs(
    logits: Tensor,  # [N, V] float32
    token_ids: Tensor,  # [N], the chosen token of each row
    wanted: Sequence[int | None],
) -> RowLogprobs:
    """Return the log probability of each row's token, and of the likeliest ones beside it.

    Args:
        logits: Those of the model, before any sampling step, of the rows that asked.
        token_ids: What stands at the position that each of them predicts.
        wanted: How many likeliest tokens each row wants; one entry too, None, for each row that
            did not ask, where it stands among them.
    """
    token_ids = token_ids.long()
    most = max(count for count in wanted if count is not None)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, token_ids.unsqueeze(1))  # [N, 1]
    ranks = (logprobs > chosen).sum(1) + 1
    top = logprobs.topk(most)
    return RowLogprobs(
        token_ids=torch.cat((token_ids.unsqueeze(1), top.indices), 1),
        values=torch.cat((chosen, top.values), 1).clamp_min(MIN_LOGPROB),
        ranks=ranks,
        wanted=wanted,
    )


def _answer(count: int, ids: list[int], values: list[float], rank: int) -> TokenLogprobs:
    return TokenLogprobs(ids[: count + 1], values[: count + 1], rank)
