"""Log probabilities of rows: computed on the device, and read when somebody can wait for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.messages import TokenLogprobs
from quire.worker.host_copy import HostCopier, HostCopy

MIN_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclass(slots=True)
class RowLogprobs:
    """Log probabilities of some rows, on the device.

    Attributes:
        token_ids: `[N, 1 + most]`, the chosen token and then the likeliest.
        values: The same shape.
        ranks: `[N]`, of the chosen token.
        wanted: How many others each row asked for; None: nothing at all.
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
        """Return them for the rows that asked, when they have arrived."""
        tensors = (self.token_ids, self.values, self.ranks)
        arrived = tensors if self.copy is None else self.copy.wait()
        rows = zip(self.wanted, *(tensor.tolist() for tensor in arrived), strict=True)
        return [
            None if count is None else TokenLogprobs(ids[: count + 1], values[: count + 1], rank)
            for count, ids, values, rank in rows
        ]


def row_logprobs(
    logits: Tensor,  # [N, V] float32
    token_ids: Tensor,  # [N] int64, the chosen token of each row
    wanted: Sequence[int | None],
) -> RowLogprobs:
    """Return the log probability of each row's token, and of the likeliest ones beside it.

    Args:
        logits: Those of the model, before any sampling step.
        token_ids: What stands at the position that each row predicts.
        wanted: How many likeliest tokens each row asks for; one of them is a number.
    """
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
