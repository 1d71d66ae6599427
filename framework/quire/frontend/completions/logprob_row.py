"""The candidates at one position are numbers side by side; objects are made when somebody looks.

A prompt can bring hundreds of thousands of candidates. As objects they would take ten times the
memory, and the garbage collector would walk over all of them again and again.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping

from quire.messages import TokenLogprobs
from quire.outputs import Logprob

LOWEST_LOGPROB = -9999.0  # JSON has no -inf


class LogprobRow(Mapping[int, Logprob]):
    """A read-only mapping from token id to `Logprob`; the token that stands there comes first.

    Args:
        row: The token that stands there with its rank, then the likeliest ones in their order.
        text_of: What a token looks like.
    """

    __slots__ = ("_logprobs", "_rank", "_text_of", "_token_ids")

    def __init__(self, row: TokenLogprobs, text_of: Callable[[int], str]) -> None:
        self._token_ids = array("q", row.token_ids)
        self._logprobs = array("d", row.logprobs)
        self._rank = row.rank
        self._text_of = text_of

    def as_dict(self) -> dict[int, Logprob]:
        """Return all candidates as objects."""
        return {token_id: self._at(index) for index, token_id in self._numbered()}

    def __getitem__(self, token_id: int) -> Logprob:
        try:
            return self._at(self._token_ids.index(token_id))
        except (ValueError, TypeError, OverflowError):
            raise KeyError(token_id) from None

    def __iter__(self) -> Iterator[int]:
        return (token_id for _, token_id in self._numbered())

    def __len__(self) -> int:
        chosen = self._token_ids[0]
        return len(self._token_ids) - self._token_ids[1:].count(chosen)

    def _numbered(self) -> Iterator[tuple[int, int]]:
        """Yield (index, token id); the one that stands there is not told again among the others."""
        chosen = self._token_ids[0]
        for index, token_id in enumerate(self._token_ids):
            if index == 0 or token_id != chosen:
                yield index, token_id

    def _at(self, index: int) -> Logprob:
        number = self._logprobs[index]
        shown = max(number, LOWEST_LOGPROB) if math.isfinite(number) else LOWEST_LOGPROB
        return Logprob(shown, index or self._rank, self._text_of(self._token_ids[index]))
