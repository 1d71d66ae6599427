"""Limits on the grammars that wait to be compiled, so that no client waits for what it cannot get.

A grammar that has not been compiled yet holds a place for one turn at most, then makes way. So a
new one waits for as many turns as there are grammars ranked before it, divided by the places.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.errors import OverloadedError

OWN_PART = 4  # a client may have 1 / OWN_PART of all that wait


@dataclass(frozen=True, slots=True)
class Waiting:
    """A grammar that waits to be compiled, with the client and the rank of its first request."""

    client: str
    rank: tuple[float, float]


class CompileLoad:
    """Decides whether one more grammar may wait.

    Args:
        max_waiting: Number of grammars that may wait; a client that has none may exceed it, but
            not twice the number.
        max_wait_s: Estimated wait from which on no grammar is taken.
        turn_s: Longest turn of a new grammar.
        num_places: Number of grammars that compile at the same time.
    """

    def __init__(self, max_waiting: int, max_wait_s: float, turn_s: float, num_places: int) -> None:
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._turn_s = turn_s
        self._num_places = max(1, num_places - 1)  # one may be held by a slow grammar to its end

    def check(self, new: Waiting, waiting: Sequence[Waiting]) -> None:
        """Refuse a grammar if too many wait, or if it would wait too long for its first turn.

        Raises:
            OverloadedError: It must be sent again later.
        """
        num_own = sum(each.client == new.client for each in waiting)
        wait_s = self.wait_s(sum(each.rank <= new.rank for each in waiting))
        if num_own >= max(1, self._max_waiting // OWN_PART):
            reason = f"{num_own} new grammars of this client are waiting to be compiled"
        elif len(waiting) >= self._max_waiting * (1 if num_own else 2):
            reason = f"{len(waiting)} new grammars are waiting to be compiled"
        elif wait_s > self._max_wait_s:
            reason = f"a new grammar would wait about {wait_s:.2g} s to be compiled"
        else:
            return
        raise OverloadedError(
            f"{reason}; try again later, or with a grammar that was used before",
            retry_after_s=max(wait_s, self._turn_s),
        )

    def wait_s(self, num_before: int) -> float:
        """Return the seconds that a new grammar waits behind others, at most about."""
        return num_before * self._turn_s / self._num_places
