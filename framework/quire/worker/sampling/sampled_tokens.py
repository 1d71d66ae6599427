"""Sampled tokens on the device, and their asynchronous copy to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.messages import TokenLogprobs
from quire.worker.device.copies import HostCopier, HostCopy
from quire.worker.sampling.carried_state import ObservedStates, RowState
from quire.worker.sampling.row_logprobs import RowLogprobs


class HostTokens(NamedTuple):
    """Sampled tokens of some rows on the host, as lists, to avoid an object per token.

    Attributes:
        token_ids: Token ids; undefined for rows that are not valid.
        is_valid: Whether a token was sampled: the id is in the vocabulary and its logit is finite.
        logprobs: Log probabilities; None for rows that do not request them.
        states: States of sampler steps after the token, or an error if they are not finite; None
            for rows without any.
    """

    token_ids: list[int]
    is_valid: list[bool]
    logprobs: Sequence[TokenLogprobs | None]
    states: Sequence[RowState]


@dataclass(slots=True)
class SampledTokens:
    """Sampled tokens of some rows, on the device.

    Attributes:
        packed: `[2, N]` int32: token ids and, as the bits of a float32, the logit of the token or
            the largest logit of its row, which is not finite where no token could be sampled. One
            tensor, so that one copy suffices.
        vocab_size: Size of the vocabulary, V; an id outside of it is an error of the sampler.
        logprobs: Log probabilities, if a row requests them.
        states: States of sampler steps after these tokens, if a row has any.
        copy: Copy to the host, once started.
    """

    packed: Tensor
    vocab_size: int
    logprobs: RowLogprobs | None = None
    states: ObservedStates | None = None
    copy: HostCopy | None = None

    @classmethod
    def of(
        cls,
        token_ids: Tensor,  # [N] int64
        best: Tensor,  # [N] float32
        vocab_size: int,
    ) -> SampledTokens:
        """Pack token ids with the largest logit of each row."""
        return cls(torch.stack((token_ids.to(torch.int32), best.view(torch.int32))), vocab_size)

    @property
    def token_ids(self) -> Tensor:  # [N] int32
        """Sampled token ids."""
        return self.packed[0]

    def first(self, num_rows: int) -> SampledTokens:
        """Return a copy of the first rows, which later samplings do not overwrite."""
        return SampledTokens(self.packed[:, :num_rows].clone(), self.vocab_size)

    def start_copy(self, copier: HostCopier) -> None:
        """Start to copy tokens, log probabilities and states to the host."""
        self.copy = copier.begin(self.packed)
        for further in (self.logprobs, self.states):
            if further is not None:
                further.start_copy(copier)

    @property
    def is_on_host(self) -> bool:
        """Whether `read` would return without waiting for the tokens."""
        return self.copy is None or self.copy.is_done

    def read(self) -> HostTokens:
        """Wait for the copy, and return the tokens on the host."""
        (packed,) = (self.packed,) if self.copy is None else self.copy.wait()
        token_ids, best = packed.cpu().numpy()
        is_token = (token_ids >= 0) & (token_ids < self.vocab_size)
        is_valid = (is_token & np.isfinite(best.view(np.float32))).tolist()
        logprobs = [None] * len(is_valid) if self.logprobs is None else self.logprobs.read()
        states = [None] * len(is_valid) if self.states is None else self.states.read()
        return HostTokens(token_ids.tolist(), is_valid, logprobs, states)


def pack_tokens(
    logits: Tensor,  # [N, V] float32
    token_ids: Tensor,  # [N] int64
) -> Tensor:  # [2, N] int32
    """Pack token ids with their own logits, as in `SampledTokens`.

    Raises:
        RuntimeError: On a CPU, an id is not in the vocabulary.
    """
    packed = torch.empty(2, len(token_ids), dtype=torch.int32, device=logits.device)
    packed[0].copy_(token_ids)
    best = packed[1].view(torch.float32).unsqueeze(1)
    torch.gather(logits, 1, token_ids.unsqueeze(1), out=best)
    return packed
