"""Isolation of a request whose computation fails: suspects are computed alone, one after another.

If a step fails on several workers, none of them may find out alone which request is the cause. So
all steps in flight are discarded, and the requests of the failed step are suspects. Each is
computed alone until it has sampled a token, or its step fails and it is the cause. Then all
requests are computed together again.
"""

from collections import deque
from collections.abc import Iterable

from quire.engine.request import Request, Status


class Isolation:
    """The suspects of a failed step, in the order in which they are tried."""

    def __init__(self) -> None:
        self._suspects: deque[Request] = deque()

    @property
    def suspect(self) -> Request | None:
        """The request to compute alone; None if all are computed together."""
        while self._suspects and self._suspects[0].status is Status.FINISHED:
            self._suspects.popleft()
        return self._suspects[0] if self._suspects else None

    def begin(self, requests: Iterable[Request]) -> None:
        """Suspect the requests of a failed step; suspects of an earlier one remain."""
        known = set(self._suspects)
        self._suspects.extend(request for request in requests if request not in known)

    def note_sampled(self, request: Request) -> None:
        """Clear the suspect that is computed alone: it has sampled a token."""
        if self._suspects and self._suspects[0] is request:
            self._suspects.popleft()
