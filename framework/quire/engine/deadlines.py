"""When requests must be over: a look at the clock a step, and work only for those that are late."""

import heapq

from quire.engine.request import Request, Status
from quire.errors import RequestTimeoutError
from quire.messages import ErrorReport


class Deadlines:
    """Requests with a deadline, the next one first.

    Args:
        default_s: Seconds for requests that name none, and the most that one may have; None: no
            limit.
    """

    def __init__(self, default_s: float | None) -> None:
        self._default_s = default_s
        self._heap: list[tuple[float, int, Request]] = []
        self._num_added = 0

    def add(self, request: Request) -> None:
        """Note a request's deadline, if it has one."""
        limits = [s for s in (request.message.timeout_s, self._default_s) if s is not None]
        if limits:
            self._num_added += 1
            deadline = request.arrival_s + min(limits)
            heapq.heappush(self._heap, (deadline, self._num_added, request))

    def late(self, now_s: float) -> list[Request]:
        """Take out the requests whose time is up and that are not over.

        Args:
            now_s: The monotonic clock.
        """
        late = []
        while self._heap and self._heap[0][0] <= now_s:
            request = heapq.heappop(self._heap)[2]
            if request.status is not Status.FINISHED:
                late.append(request)
        return late


def report_of(request: Request, now_s: float) -> ErrorReport:
    """Say how long a late request took, and how far it came."""
    return ErrorReport(
        RequestTimeoutError.code,
        f"the request was not over {now_s - request.arrival_s:.1f} s after its arrival; it had "
        f"{request.num_generated_tokens} of at most {request.message.max_tokens} tokens. Give it "
        "more time (timeout_s, at most the engine's request_timeout_s), or ask for fewer tokens",
    )
