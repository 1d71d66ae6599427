"""A token bucket: units that come back at a steady rate, up to a capacity."""


class TokenBucket:
    """Units to take. After a charge the level may be negative; nothing is taken until it rises.

    Args:
        capacity: Units of a full bucket, as it is at first.
        fill_s: Seconds in which an empty bucket becomes full.
        now_s: Present time; the caller passes it to each call, and it never goes back.
    """

    def __init__(self, capacity: float, fill_s: float, now_s: float) -> None:
        self.capacity = capacity
        self._per_s = capacity / fill_s
        self._level = capacity
        self._then_s = now_s

    def level(self, now_s: float) -> float:
        """Return the units that are there; negative after charges beyond them."""
        passed_s = max(0.0, now_s - self._then_s)
        self._level = min(self.capacity, self._level + passed_s * self._per_s)
        self._then_s = max(now_s, self._then_s)
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the seconds until `amount` can be taken; beyond the capacity, until it is full."""
        missing = min(amount, self.capacity) - self.level(now_s)
        return 0.0 if missing <= self.capacity * 1e-9 else missing / self._per_s

    def take(self, amount: float, now_s: float) -> float:
        """Take units if they are there; return the seconds to wait otherwise, 0 if taken."""
        wait_s = self.wait_s(amount, now_s)
        if not wait_s:
            self._level -= amount
        return wait_s

    def charge(self, amount: float, now_s: float) -> None:
        """Take units whether they are there or not; a negative amount gives units back."""
        self._level = min(self.capacity, self.level(now_s) - amount)
