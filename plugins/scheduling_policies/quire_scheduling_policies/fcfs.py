"""First come, first served scheduling."""

from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy


class FirstComeFirstServed(SchedulingPolicy):
    """Order by arrival; the last request to arrive is preempted first."""

    def order(self, request: ScheduledView) -> int:
        """Return the same key for all requests: equal keys are ordered by arrival."""
        del request
        return 0
