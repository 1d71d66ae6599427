"""Load of each replica: the tokens that it has still to compute, as far as the router knows.

A replica that has just started is empty, and would get every request until its load is that of the
others. So what they have on average is added to its load, less and less while it warms up: its load
rises from nothing to theirs over `WARM_UP_S`.
"""

import math
from collections.abc import Iterable

WARM_UP_S = 10.0
DOWN = math.inf
SILENT = 1e12  # tokens, more than any load: a silent replica is chosen only if all are


class ReplicaLoads:
    """Loads by replica, in tokens.

    Args:
        num_replicas: Number of replicas; all are down at first.
    """

    def __init__(self, num_replicas: int) -> None:
        self._tokens = [0.0] * num_replicas
        self._counted = [DOWN] * num_replicas  # with the handicap of those that warm up
        self._warm_at: dict[int, float] = {}  # replicas that warm up, with the end of it
        self._silent: set[int] = set()
        self._total = 0.0
        self._num_up = 0
        self._next = 0  # among equals, the replica after the last one that was chosen

    @property
    def num_up(self) -> int:
        """Number of replicas that take requests."""
        return self._num_up

    def is_up(self, replica: int) -> bool:
        """Whether a replica takes requests."""
        return self._counted[replica] != DOWN

    def extend(self) -> int:
        """Make room for one more replica, which is down; return its index."""
        self._tokens.append(0.0)
        self._counted.append(DOWN)
        return len(self._tokens) - 1

    def start(self, replica: int, now_s: float) -> None:
        """Add an idle replica; it warms up if the others have work."""
        self.stop(replica)
        self._tokens[replica] = self._counted[replica] = 0.0
        if self._total > 0:
            self._warm_at[replica] = now_s + WARM_UP_S
        self._num_up += 1
        self.warm_up(now_s)

    def stop(self, replica: int) -> None:
        """Remove a replica with its load; nothing happens if it is down."""
        if not self.is_up(replica):
            return
        self._num_up -= 1
        self._total -= self._tokens[replica]
        self._tokens[replica], self._counted[replica] = 0.0, DOWN
        self._warm_at.pop(replica, None)
        self._silent.discard(replica)

    def is_silent(self, replica: int) -> bool:
        """Whether a replica was marked as one that may hang."""
        return replica in self._silent

    def mark_silent(self, replica: int, *, is_silent: bool, now_s: float) -> None:
        """Record whether a replica, which is up, may hang; others are preferred to it then."""
        if is_silent:
            self._silent.add(replica)
        else:
            self._silent.discard(replica)
        self._counted[replica] = self._tokens[replica] + (SILENT if is_silent else 0.0)
        self.warm_up(now_s)

    def add(self, replica: int, num_tokens: float) -> None:
        """Add tokens to a replica's load; a negative number removes them."""
        self._tokens[replica] += num_tokens
        self._counted[replica] += num_tokens
        self._total += num_tokens

    def tokens(self, replica: int) -> float:
        """Return the tokens that a replica has still to compute."""
        return self._tokens[replica]

    def counted(self, replica: int) -> float:
        """Return the load that a replica counts as; infinite if it is down."""
        return self._counted[replica]

    def warm_up(self, now_s: float) -> None:
        """Bring the handicaps of the replicas that warm up to the present."""
        if not self._warm_at:
            return
        mean = self._mean_of_warm()
        for replica, warm_at in list(self._warm_at.items()):
            left = (warm_at - now_s) / WARM_UP_S
            if left <= 0:
                del self._warm_at[replica]
            handicap = max(0.0, left) * mean
            silence = SILENT if replica in self._silent else 0.0
            self._counted[replica] = self._tokens[replica] + handicap + silence

    def least(self) -> int:
        """Return the replica that counts as the least loaded; among equals each in turn."""
        counted = self._counted
        low = min(counted)
        try:
            found = counted.index(low, self._next)
        except ValueError:
            found = counted.index(low)
        self._next = found + 1
        return found

    def least_of(self, replicas: Iterable[int]) -> int:
        """Return the replica among some that counts as the least loaded."""
        return min(replicas, key=self._counted.__getitem__)

    def next_up(self) -> int:
        """Return the replicas that take requests, each in turn."""
        num_replicas = len(self._counted)
        turns = ((self._next + step) % num_replicas for step in range(num_replicas))
        found = next(
            (replica for replica in turns if self._counted[replica] < SILENT), None
        )  # of those that answer
        if found is None:
            found = self.least()
        self._next = found + 1
        return found

    def _mean_of_warm(self) -> float:
        num_warm = self._num_up - len(self._warm_at)
        cold = sum(self._tokens[replica] for replica in self._warm_at)
        return (self._total - cold) / num_warm if num_warm else 0.0
