"""Deadlines of requests: one look at the clock per step, and work only for expired requests.

Most requests finish long before their deadline. Entries hold weak references, so a finished request
is freed from memory; its entry is removed when the number of entries has doubled.
"""

import heapq
import math
import weakref

from quire.engine.request import Request, Status
from quire.errors import RequestTimeoutError
from quire.messages import ErrorReport

MIN_ENTRIES = 64  # up to which finished requests are not purged


class Deadlines:
    """Requests with a deadline, the earliest first.

    Attributes:
        next_s: Earliest deadline, on the monotonic clock; infinity without one.
    """

    def __init__(self) -> None:
        self.next_s = math.inf
        self._heap: list[tuple[float, int, weakref.ref[Request]]] = []
        self._num_added = 0
        self._num_to_purge = MIN_ENTRIES

    def __len__(self) -> int:
        """Number of entries: the unfinished requests, and at most as many finished ones."""
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Record a request's deadline."""
        self._num_added += 1
        entry = (request.deadline_s, self._num_added, weakref.ref(request))
        heapq.heappush(self._heap, entry)
        if len(self._heap) > self._num_to_purge:
            self._purge()
        self.next_s = self._heap[0][0]

    def pop_expired(self, now_s: float) -> list[Request]:
        """Remove and return the unfinished requests whose deadline has passed.

        Args:
            now_s: Current time, on the monotonic clock.
        """
        expired = []
        while self._heap and self._heap[0][0] <= now_s:
            request = _unfinished(heapq.heappop(self._heap)[2])
            if request is not None:
                expired.append(request)
        self.next_s = self._heap[0][0] if self._heap else math.inf
        return expired

    def _purge(self) -> None:
        """Remove finished requests; called when the heap has doubled, so amortized O(1) each."""
        self._heap = [entry for entry in self._heap if _unfinished(entry[2]) is not None]
        heapq.heapify(self._heap)
        self._num_to_purge = max(MIN_ENTRIES, 2 * len(self._heap))


def timeout_report(
    request: Request, now_s: float, engine_limit_s: float | None = None
) -> ErrorReport:
    """Return the error of an expired request: its age, its progress and the limit it exceeded.

    Args:
        request: Expired request.
        now_s: Current time, on the monotonic clock.
        engine_limit_s: The engine's `request_timeout_s`, if it has one.
    """
    own_s = request.message.timeout_s
    if own_s is not None and (engine_limit_s is None or own_s <= engine_limit_s):
        limit, remedy = f"its timeout_s is {own_s:.3g} s", "Give it a longer timeout_s"
    else:
        limit = f"this engine's request_timeout_s is {engine_limit_s:.3g} s"
        remedy = "Start the engine with a longer request_timeout_s"
    return ErrorReport(
        RequestTimeoutError.code,
        f"the request had not finished {now_s - request.arrival_s:.3g} s after its arrival, and "
        f"{limit}; it had {request.num_generated_tokens} of at most {request.message.max_tokens} "
        f"tokens. {remedy}, or ask for fewer tokens",
    )


def _unfinished(entry: weakref.ref[Request]) -> Request | None:
    request = entry()
    return None if request is None or request.status is Status.FINISHED else request
