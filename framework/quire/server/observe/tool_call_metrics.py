"""Counts and durations of calls of tool servers."""

from collections import Counter, defaultdict

from quire.frontend.metrics.histogram import LONG_TIMES_S, Histogram


class ToolCallMetrics:
    """Numbers of calls of tool servers; used in one event loop.

    Attributes:
        calls: Number of calls that are over, by the label of the server and by their end:
            completed, failed or cancelled.
        duration_s: Seconds of a call, by the label of the server.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.duration_s: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(LONG_TIMES_S))

    def add(self, label: str, end: str, seconds: float) -> None:
        """Count a call that is over."""
        self.calls[label, end] += 1
        self.duration_s[label].observe(seconds)
