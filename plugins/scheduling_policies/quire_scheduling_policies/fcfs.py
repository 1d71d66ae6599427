"""First come, first served: everybody waits for those before, and nobody for those behind."""

from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy


class FirstComeFirstServed(SchedulingPolicy):
    """Order by arrival; the last to come is the first to go."""

    def order(self, request: ScheduledView) -> int:
        """Return the same key for all: equals go in the order of their arrival."""
        del request
        return 0
