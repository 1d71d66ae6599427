"""Scheduling policy in the order of arrival that injects faults into each of its decisions."""

import math
from collections.abc import Sequence
from typing import Any

from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy
from quire_faults.injection import injection


class FaultyPolicy(SchedulingPolicy):
    """First come, first served."""

    def order(self, request: ScheduledView) -> Any:
        """Return the same key for all, or one that cannot be sorted."""
        del request
        return math.nan if injection().reach("policy.order") == "corrupt" else None

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        """Return True."""
        injection().reach("policy.admits")
        return super().admits(request, running)

    def victim(self, running: Sequence[ScheduledView]) -> int:
        """Return the last request, or one that does not exist."""
        is_corrupt = injection().reach("policy.victim") == "corrupt"
        return len(running) if is_corrupt else super().victim(running)

    def began(self, request: ScheduledView) -> None:
        """Do nothing."""
        del request
        injection().reach("policy.began")

    def ended(self, request: ScheduledView) -> None:
        """Do nothing."""
        del request
        injection().reach("policy.ended")
