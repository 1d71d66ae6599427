"""`LogprobRow`: compact log probabilities of one position, converted to objects on access.

A prompt can have hundreds of thousands of candidates. As objects they would take ten times the
memory, and every garbage collection would traverse them.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping

from quire.messages import TokenLogprobs
from quire.outputs import Logprob

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


class LogprobRow(Mapping[int, Logprob]):
    """A read-only mapping from token id to `Logprob`; the chosen token comes first.

    Args:
        row: Chosen token with its rank, then the most likely tokens in order.
        text_of: Function that returns the text of a token.
    """

    __slots__ = ("_logprobs", "_rank", "_text_of", "_token_ids")

    def __init__(self, row: TokenLogprobs, text_of: Callable[[int], str]) -> None:
        self._token_ids = array("q", row.token_ids)
        self._logprobs = array("d", row.logprobs)
        self._rank = row.rank
        self._text_of = text_of

    def as_dict(self) -> dict[int, Logprob]:
        """Return all candidates as objects."""
        return {token_id: self._logprob_at(index) for index, token_id in self._candidates()}

    def __getitem__(self, token_id: int) -> Logprob:
        try:
            return self._logprob_at(self._token_ids.index(token_id))
        except (ValueError, TypeError, OverflowError):
            raise KeyError(token_id) from None

    def __iter__(self) -> Iterator[int]:
        return (token_id for _, token_id in self._candidates())

    def __len__(self) -> int:
        chosen = self._token_ids[0]
        return len(self._token_ids) - self._token_ids[1:].count(chosen)

    def _candidates(self) -> Iterator[tuple[int, int]]:
        """Yield (index, token id); the chosen token is not repeated among the most likely ones."""
        chosen = self._token_ids[0]
        for index, token_id in enumerate(self._token_ids):
            if index == 0 or token_id != chosen:
                yield index, token_id

    def _logprob_at(self, index: int) -> Logprob:
        logprob = self._logprobs[index]
        shown = max(logprob, LOWEST_LOGPROB) if math.isfinite(logprob) else LOWEST_LOGPROB
        return Logprob(shown, index or self._rank, self._text_of(self._token_ids[index]))
