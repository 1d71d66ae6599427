"""`LogprobRow`: compact log probabilities of one position, converted to objects on access.

A prompt can have hundreds of thousands of candidates. As objects they would take ten times the
memory, and every garbage collection would traverse them.
"""

import math
from array import array
from collections.abc import Callable, ItemsView, Iterator, Mapping

from quire.messages import TokenLogprobs
from quire.outputs import Logprob

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


class LogprobRow(Mapping[int, Logprob]):
    """A read-only mapping from token id to `Logprob`; the chosen token comes first.

    Args:
        row: Chosen token with its rank, then the most likely tokens in order, or named ones.
        text_of: Function that returns the text of a token.
        is_ranked: Whether the tokens after the first are the most likely ones.
    """

    __slots__ = ("_is_ranked", "_logprobs", "_rank", "_text_of", "_token_ids")

    def __init__(
        self, row: TokenLogprobs, text_of: Callable[[int], str], *, is_ranked: bool = True
    ) -> None:
        self._token_ids = array("q", row.token_ids)
        self._logprobs = array("d", row.logprobs)
        self._rank = row.rank
        self._text_of = text_of
        self._is_ranked = is_ranked

    def as_dict(self) -> dict[int, Logprob]:
        """Return all candidates as objects."""
        return dict(self.items())

    def items(self) -> ItemsView[int, Logprob]:
        """Return a view of the pairs of token id and `Logprob`; a pass over it is linear."""
        return _RowItems(self)

    def __getitem__(self, token_id: int) -> Logprob:
        try:
            return self._logprob_at(self._token_ids.index(token_id))
        except (ValueError, TypeError, OverflowError):
            raise KeyError(token_id) from None

    def __iter__(self) -> Iterator[int]:
        return (token_id for _, token_id in self._candidates())

    def __len__(self) -> int:
        return sum(1 for _ in self._candidates())

    def pairs(self) -> Iterator[tuple[int, Logprob]]:
        """Yield the candidates, the chosen one first."""
        chosen, text_of = self._token_ids[0], self._text_of
        candidates = zip(self._token_ids, self._logprobs, strict=True)
        for index, (token_id, logprob) in enumerate(candidates):
            if index == 0 or token_id != chosen:
                yield token_id, Logprob(_shown(logprob), self._rank_at(index), text_of(token_id))

    @property
    def chosen_logprob(self) -> float:
        """Log probability of the chosen token."""
        return _shown(self._logprobs[0])

    def _candidates(self) -> Iterator[tuple[int, int]]:
        """Yield (index, token id); the chosen token is not repeated among the most likely ones."""
        chosen = self._token_ids[0]
        for index, token_id in enumerate(self._token_ids):
            if index == 0 or token_id != chosen:
                yield index, token_id

    def _logprob_at(self, index: int) -> Logprob:
        text = self._text_of(self._token_ids[index])
        return Logprob(_shown(self._logprobs[index]), self._rank_at(index), text)

    def _rank_at(self, index: int) -> int | None:
        if index == 0:
            return self._rank
        return index if self._is_ranked else None


def _shown(logprob: float) -> float:
    """Return a log probability, or the lowest in place of one that is lower or not finite."""
    return logprob if LOWEST_LOGPROB <= logprob < math.inf else LOWEST_LOGPROB


class _RowItems(ItemsView[int, Logprob]):
    """The items of a row, without a search for each token."""

    def __init__(self, row: LogprobRow) -> None:
        super().__init__(row)
        self._row = row

    def __iter__(self) -> Iterator[tuple[int, Logprob]]:
        return self._row.pairs()
