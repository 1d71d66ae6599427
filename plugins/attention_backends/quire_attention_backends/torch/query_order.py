"""Queries leave a step for its batches, and answers come back, by one gather each way.

step     | a | b0 b1 b2 | c | padding |
asked    | a c | b0 b1 b2 b2 |             two batches; a shorter span repeats its last query
answers  | a c | b0 b1 b2 b2 | any |
places   | 0 | 2 3 5 | 1 | 6 |          of copies, whose answers are the same, the last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire_attention_backends.torch.spans import IntArray, Spans


@dataclass(frozen=True, slots=True)
class QueryOrder:
    """The order in which the batches of a step ask; T tokens in the step, N queries asked.

    Attributes:
        counts: Queries of each batch, repeated ones included.
        asked: `[N]` int64, tokens of the step; None: they are all of it, in its order.
        places: `[T]` int64, where the answers of tokens stand among those of all batches, N for
            tokens of padding; None: where the tokens stand.
    """

    counts: list[int]
    asked: Tensor | None
    places: Tensor | None

    @classmethod
    def of(cls, batches: Sequence[Spans], num_tokens: int, device: torch.device) -> QueryOrder:
        """Find the order of a step of `num_tokens`, padding included."""
        asked_by = [_asked(batch) for batch in batches]
        counts = [len(each) for each in asked_by]
        asked = np.concatenate([np.zeros(0, np.int64), *asked_by])
        if np.array_equal(asked, np.arange(num_tokens)):
            return cls(counts, None, None)
        places = np.full(num_tokens, len(asked))
        places[asked] = np.arange(len(asked))  # where an index repeats, numpy leaves the last
        return cls(counts, torch.from_numpy(asked).to(device), torch.from_numpy(places).to(device))

    def of_each_batch(self, q: Tensor) -> tuple[Tensor, ...]:  # [T, ...] -> [n * q, ...] each
        """Return the queries of each batch."""
        rows = q if self.asked is None else q.index_select(0, self.asked)
        return torch.split(rows, self.counts)

    def of_the_step(self, answers: Sequence[Tensor]) -> Tensor:  # [n * q, ...] each -> [T, ...]
        """Return the answers of all batches in the order of the step, and any row for padding."""
        if self.places is not None:
            answers = [*answers, answers[0].new_empty(1, *answers[0].shape[1:])]
            return torch.cat(answers).index_select(0, self.places)
        return answers[0] if len(answers) == 1 else torch.cat(list(answers))


def _asked(spans: Spans) -> IntArray:  # [n * q]
    within = np.minimum(np.arange(spans.num_queries), spans.sizes[:, None] - 1)
    return (spans.first_tokens[:, None] + within).ravel()
