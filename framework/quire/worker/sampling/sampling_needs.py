"""Combined sampling needs of the requests of a batch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from quire.worker.batch.slots import SlotInfo
from quire.worker.sampling.companion_rows import CompanionRows


@dataclass(frozen=True, slots=True)
class SamplingNeeds:
    """Sampling needs of the requests of a batch.

    Attributes:
        active: Bits of the pipeline steps that some request needs.
        active_each: Bits of those that each request needs.
        fields: Sampler fields of each request.
        num_logprobs: Number of log probabilities for each request; None for no log probabilities.
        logprob_rows: Rows that need log probabilities.
        named: Tokens that each request names to have their log probabilities.
        has_min_tokens: Whether some request has `min_tokens`.
        pairs: Guided requests and their companions; None if there are none.
    """

    active: int
    active_each: Sequence[int]
    fields: Sequence[Mapping[str, Any]]
    num_logprobs: Sequence[int | None]
    logprob_rows: Sequence[int]
    named: Sequence[Sequence[int]]
    has_min_tokens: bool
    pairs: CompanionRows | None

    @classmethod
    def of(
        cls, slots: Sequence[int], infos: Sequence[SlotInfo], device: torch.device
    ) -> SamplingNeeds:
        """Return the combined needs of the requests in some slots.

        Raises:
            RequestFailedError: The companion of a guided request is not among them.
        """
        num_logprobs = [info.num_logprobs for info in infos]
        active_each = [info.active_steps for info in infos]
        return cls(
            active=functools.reduce(operator.or_, active_each, 0),
            active_each=active_each,
            fields=[info.fields for info in infos],
            num_logprobs=num_logprobs,
            logprob_rows=[row for row, count in enumerate(num_logprobs) if count is not None],
            named=[info.logprob_token_ids for info in infos],
            has_min_tokens=any(info.min_tokens for info in infos),
            pairs=CompanionRows.of(slots, infos, device),
        )
