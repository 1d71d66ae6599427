"""Drawn tokens stay on the device; the host reads its own copy, when it has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.messages import TokenLogprobs
from quire.worker.device.host_copy import HostCopier, HostCopy
from quire.worker.sampling.row_logprobs import RowLogprobs


class HostTokens(NamedTuple):
    """What some rows drew, a list for each column: a row of its own is an object a token.

    Attributes:
        token_ids: Means nothing where it is not sound.
        is_sound: Whether a token could be drawn: it is one, and its logit is a number.
        logprobs: Of the rows that asked.
    """

    token_ids: list[int]
    is_sound: list[bool]
    logprobs: Sequence[TokenLogprobs | None]


@dataclass(slots=True)
class SampledTokens:
    """The tokens of some rows, on the device.

    Attributes:
        packed: `[2, N]` int32, token ids and, bit for bit, float32: the logit of the token or the
            largest one of its row; not finite where no token could be drawn. One piece of memory,
            because it is copied in one go.
        vocab_size: V; any other id is a mistake of the draw.
        logprobs: If a row asked for them.
        copy: On its way to the host, once it was started.
    """

    packed: Tensor
    vocab_size: int
    logprobs: RowLogprobs | None = None
    copy: HostCopy | None = None

    @classmethod
    def of(
        cls,
        token_ids: Tensor,  # [N] int64
        best: Tensor,  # [N] float32
        vocab_size: int,
    ) -> SampledTokens:
        """Pack what was drawn."""
        return cls(torch.stack((token_ids.to(torch.int32), best.view(torch.int32))), vocab_size)

    @classmethod
    def from_logits(
        cls,
        logits: Tensor,  # [N, V] float32
        token_ids: Tensor,  # [N] int64
    ) -> SampledTokens:
        """Pack tokens with their own logits."""
        packed = torch.empty(2, len(token_ids), dtype=torch.int32, device=logits.device)
        packed[0].copy_(token_ids)
        best = packed[1].view(torch.float32).unsqueeze(1)
        torch.gather(logits, 1, token_ids.unsqueeze(1), out=best)
        return cls(packed, logits.shape[1])

    @property
    def token_ids(self) -> Tensor:  # [N] int32
        """What was drawn."""
        return self.packed[0]

    def first(self, num_rows: int) -> SampledTokens:
        """Return the first rows in memory of their own, where what is drawn next is not written."""
        return SampledTokens(self.packed[:, :num_rows].clone(), self.vocab_size)

    def start_copy(self, copier: HostCopier) -> None:
        """Begin to bring all of it to the host."""
        self.copy = copier.begin(self.packed)
        if self.logprobs is not None:
            self.logprobs.start_copy(copier)

    def read(self) -> HostTokens:
        """Return what the rows drew, when it has arrived."""
        (packed,) = (self.packed,) if self.copy is None else self.copy.wait()
        token_ids, best = packed.cpu().numpy()
        is_token = (token_ids >= 0) & (token_ids < self.vocab_size)
        is_sound = (is_token & np.isfinite(best.view(np.float32))).tolist()
        logprobs = [None] * len(is_sound) if self.logprobs is None else self.logprobs.read()
        return HostTokens(token_ids.tolist(), is_sound, logprobs)
