"""The lowest priority number goes first; requests of the same priority go in order of arrival."""

from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy


class PriorityFirst(SchedulingPolicy):
    """Order by the caller's priority, 0 by default; the last in that order is the first to go.

    A request with a high number waits as long as lower ones keep coming.
    """

    def order(self, request: ScheduledView) -> int:
        """Return the priority."""
        return request.priority
