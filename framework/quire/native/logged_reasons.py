"""Reasons that were logged, so that each is logged once for all libraries of a process."""

import threading


class LoggedReasons:
    """A set of reasons; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: set[str] = set()

    def is_new(self, reason: str) -> bool:
        """Add a reason, and return whether it was not in the set before."""
        with self._lock:
            num_before = len(self._reasons)
            self._reasons.add(reason)
            return len(self._reasons) > num_before
