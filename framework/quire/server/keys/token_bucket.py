"""A token bucket: units that come back at a steady rate, up to a capacity."""

from quire.server.keys.ledger import Level, LocalLevel


class TokenBucket:
    """Units to take. After a charge the level may be negative; nothing is taken until it rises.

    Args:
        capacity: Units of a full bucket, as it is at first.
        fill_s: Seconds in which an empty bucket becomes full.
        now_s: Present time; the caller passes it to each call, and it never goes back.
        level: Where the level is kept; None: here.
    """

    def __init__(
        self, capacity: float, fill_s: float, now_s: float, level: Level | None = None
    ) -> None:
        self.capacity = capacity
        self._per_s = capacity / fill_s
        self._kept: Level = LocalLevel() if level is None else level
        self._kept.then_s = max(now_s, self._kept.then_s)

    def level(self, now_s: float) -> float:
        """Return the units that are there; negative after charges beyond them."""
        kept = self._kept
        passed_s = max(0.0, now_s - kept.then_s)
        kept.debt = max(0.0, kept.debt - passed_s * self._per_s)
        kept.then_s = max(now_s, kept.then_s)
        return self.capacity - kept.debt

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the seconds until `amount` can be taken; beyond the capacity, until it is full."""
        missing = min(amount, self.capacity) - self.level(now_s)
        return 0.0 if missing <= self.capacity * 1e-9 else missing / self._per_s

    def take(self, amount: float, now_s: float) -> float:
        """Take units if they are there; return the seconds to wait otherwise, 0 if taken."""
        wait_s = self.wait_s(amount, now_s)
        if not wait_s:
            self._kept.debt += amount
        return wait_s

    def charge(self, amount: float, now_s: float) -> None:
        """Take units whether they are there or not; a negative amount gives units back."""
        self.level(now_s)
        self._kept.debt = max(0.0, self._kept.debt + amount)
