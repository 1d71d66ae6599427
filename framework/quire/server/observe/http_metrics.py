"""Counts and durations of HTTP requests, by route."""

from collections import Counter, defaultdict

from quire.frontend.metrics.histogram import LONG_TIMES_S, Histogram
from quire.server.observe.observed_exchange import ObservedExchange

_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})


class HTTPMetrics:
    """Numbers of HTTP requests; used in one event loop.

    Attributes:
        requests: Number of requests that are over, by method, route and status.
        errors: Number of error responses, by code.
        duration_s: Seconds from the head of a request to the end of its response, by route.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.errors: Counter[str] = Counter()
        self.duration_s: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(LONG_TIMES_S))

    def add(self, exchange: ObservedExchange) -> None:
        """Count a request that is over."""
        method = exchange.method if exchange.method in _METHODS else "other"
        self.requests[method, exchange.route, str(exchange.status)] += 1
        self.duration_s[exchange.route].observe(exchange.duration_s)
        if exchange.error_code is not None:
            self.errors[exchange.error_code] += 1
