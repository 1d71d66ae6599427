"""First come, first served scheduling."""

from quire.interfaces.scheduling import SchedulingPolicy


class FirstComeFirstServed(SchedulingPolicy):
    """Order by arrival; the last request to arrive is preempted first. These are the defaults."""
