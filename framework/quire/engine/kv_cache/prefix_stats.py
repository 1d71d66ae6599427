"""Prefix-cache hit statistics: since the start, and over the last requests."""

from collections import deque

WINDOW_REQUESTS = 1000


class PrefixStats:
    """Counts looked-up and found prompt tokens, once per request."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.num_hits = 0
        self._window: deque[tuple[int, int]] = deque(maxlen=WINDOW_REQUESTS)
        self._window_queries = 0
        self._window_hits = 0

    @property
    def hit_rate(self) -> float:
        """Fraction of the last requests' prompt tokens that was found; 0 without requests."""
        return self._window_hits / self._window_queries if self._window_queries else 0.0

    def record(self, num_queries: int, num_hits: int) -> None:
        """Count one request."""
        self.num_queries += num_queries
        self.num_hits += num_hits
        if len(self._window) == WINDOW_REQUESTS:
            old_queries, old_hits = self._window[0]
            self._window_queries -= old_queries
            self._window_hits -= old_hits
        self._window.append((num_queries, num_hits))
        self._window_queries += num_queries
        self._window_hits += num_hits
