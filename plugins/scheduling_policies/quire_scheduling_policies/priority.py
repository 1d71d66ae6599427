"""Priority scheduling: lowest number first, equal priorities by arrival."""

from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy


class PriorityFirst(SchedulingPolicy):
    """Order by the priority of the request, 0 by default; the last in order is preempted first.

    A request with a high number waits as long as requests with lower numbers keep arriving.
    """

    def order(self, request: ScheduledView) -> int:
        """Return the priority."""
        return request.priority
