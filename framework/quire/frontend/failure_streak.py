"""Failures in a row, and the rule by which a part that fails every request makes a server unready.

A server where every request fails is useless and must report that it is not ready, so that load
balancers avoid it. What fails on some requests only must not count as failing when such requests
come in quick succession. Therefore the failures must last for a minimum time without a success in
between. A server that gets no requests cannot show that it works again, so some time after the last
failure it no longer counts as failing, until one more failure.
"""

import time
from collections.abc import Callable

MAX_FAILURES = 5  # in a row, after which something counts as failing
MIN_FAILING_S = 10.0  # minimum time between the first and the last of them
RETRY_AFTER_S = 30.0  # since the last failure, after which it no longer counts as failing


class FailureStreak:
    """Failures of one part since its last success. One thread writes; any thread may read.

    Args:
        now: Clock, in seconds.

    Attributes:
        num_failures: Number of failures in a row.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.num_failures = 0
        self._now = now
        self._first_failure_s = 0.0
        self._last_failure_s = 0.0
        self._keeps_failing = False

    @property
    def is_failing(self) -> bool:
        """Whether all has failed for a while, also recently."""
        return self._keeps_failing and self._last_failure_s > self._now() - RETRY_AFTER_S

    @property
    def duration_s(self) -> float:
        """Seconds between the first failure and the last one."""
        return self._last_failure_s - self._first_failure_s

    def record_success(self) -> int:
        """End the row.

        Returns:
            Number of failures in it, if they had lasted for long enough to count; else 0.
        """
        ended = self.num_failures if self._keeps_failing else 0
        self.num_failures = 0
        self._keeps_failing = False
        return ended

    def record_failure(self) -> bool:
        """Add a failure; return whether they have lasted for long enough with this one."""
        self._last_failure_s = self._now()
        if self.num_failures == 0:
            self._first_failure_s = self._last_failure_s
        self.num_failures += 1
        has_lasted = self.num_failures >= MAX_FAILURES and self.duration_s >= MIN_FAILING_S
        is_new = has_lasted and not self._keeps_failing
        self._keeps_failing = self._keeps_failing or has_lasted
        return is_new
