"""Scheduling policy: the request with the fewest tokens first."""

from quire.interfaces.scheduling import SchedulingPolicy


class ShortestFirst(SchedulingPolicy):
    """Short requests first; a long one waits as long as shorter ones keep arriving."""

    def order(self, request):
        """Return the maximum length of the request, in tokens."""
        return request.max_total_tokens
