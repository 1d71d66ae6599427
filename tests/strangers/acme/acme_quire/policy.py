"""The request that needs the fewest tokens goes first."""

from quire.interfaces.scheduling import SchedulingPolicy


class ShortestFirst(SchedulingPolicy):
    """Short requests first; a long one waits as long as shorter ones keep coming."""

    def order(self, request):
        """Return its length, if it uses all that it may."""
        return request.max_total_tokens
