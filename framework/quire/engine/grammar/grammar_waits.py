"""The time that requests wait for their grammars, for metrics."""

import time


class GrammarWaits:
    """Time from the submission of each grammar until it is ready or has failed.

    Attributes:
        num_done: Number of grammars that were ready, or failed.
        total_s: Time that their requests waited for them, in seconds.
    """

    def __init__(self) -> None:
        self.num_done = 0
        self.total_s = 0.0
        self._since_s: dict[str, float] = {}

    def begin(self, request_id: str) -> None:
        """Record that a request waits from now on."""
        self._since_s[request_id] = time.monotonic()

    def end(self, request_id: str) -> None:
        """Count a request that waits no longer; nothing if it has ended before."""
        since_s = self._since_s.pop(request_id, None)
        if since_s is not None:
            self.num_done += 1
            self.total_s += time.monotonic() - since_s

    def forget(self, request_id: str) -> None:
        """Leave out a request that ended while it waited."""
        self._since_s.pop(request_id, None)
