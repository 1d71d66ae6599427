"""Drawn tokens stay on the device; the host reads its own copy, when it has arrived."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from quire.messages import TokenLogprobs
from quire.worker.host_copy import HostCopier, HostCopy
from quire.worker.logprobs import RowLogprobs


class DrawnToken(NamedTuple):
    """What one row drew.

    Attributes:
        token_id: Means nothing if it is not sound.
        is_sound: Whether a token could be drawn: its logit is a number.
        logprobs: If the row asked for them.
    """

    token_id: int
    is_sound: bool
    logprobs: TokenLogprobs | None


@dataclass(slots=True)
class Drawn:
    """The tokens of some rows, on the device.

    Attributes:
        token_ids: `[N]` int64.
        best: `[N]`, the logit of the token or the largest one; not finite where no token could be
            drawn.
        logprobs: If a row asked for them.
        copy: On its way to the host, once it was started.
    """

    token_ids: Tensor
    best: Tensor
    logprobs: RowLogprobs | None = None
    copy: HostCopy | None = None

    def first(self, num_rows: int) -> "Drawn":
        """Return the first rows in memory of their own, where what is drawn next is not written."""
        return Drawn(self.token_ids[:num_rows].clone(), self.best[:num_rows].clone())

    def start_copy(self, copier: HostCopier) -> None:
        """Begin to bring all of it to the host."""
        self.copy = copier.begin(self.token_ids, self.best)
        if self.logprobs is not None:
            self.logprobs.start_copy(copier)

    def read(self) -> list[DrawnToken]:
        """Return what each row drew, when it has arrived."""
        token_ids, best = (self.token_ids, self.best) if self.copy is None else self.copy.wait()
        logprobs = [None] * len(token_ids) if self.logprobs is None else self.logprobs.read()
        rows = zip(token_ids.tolist(), torch.isfinite(best).tolist(), logprobs, strict=True)
        return [DrawnToken(*row) for row in rows]
