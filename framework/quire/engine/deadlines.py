"""When requests must be over: a look at the clock a step, and work only for those that are late.

Most requests are over long before their deadline. What is noted here does not keep them: who is
over is gone from memory, and its note goes when the notes have doubled.
"""

import heapq
import weakref

from quire.engine.request import Request, Status
from quire.errors import RequestTimeoutError
from quire.messages import ErrorReport

MIN_NOTES = 64  # until which nobody looks for those that are over


class Deadlines:
    """Requests with a deadline, the next one first.

    Args:
        default_s: Seconds for requests that name none, and the most that one may have; None: no
            limit.
    """

    def __init__(self, default_s: float | None) -> None:
        self._default_s = default_s
        self._heap: list[tuple[float, int, weakref.ref[Request]]] = []
        self._num_added = 0
        self._num_to_purge = MIN_NOTES

    def __len__(self) -> int:
        """Notes: of those that are not over, and of at most as many again that are."""
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Note a request's deadline, if it has one."""
        limits = [s for s in (request.message.timeout_s, self._default_s) if s is not None]
        if limits:
            self._num_added += 1
            deadline = request.arrival_s + min(limits)
            heapq.heappush(self._heap, (deadline, self._num_added, weakref.ref(request)))
            if len(self._heap) > self._num_to_purge:
                self._purge()

    def late(self, now_s: float) -> list[Request]:
        """Take out the requests whose time is up and that are not over.

        Args:
            now_s: The monotonic clock.
        """
        late = []
        while self._heap and self._heap[0][0] <= now_s:
            request = _unfinished(heapq.heappop(self._heap)[2])
            if request is not None:
                late.append(request)
        return late

    def _purge(self) -> None:
        """Forget who is over: as seldom as the rest has doubled, so a request's part is small."""
        self._heap = [note for note in self._heap if _unfinished(note[2]) is not None]
        heapq.heapify(self._heap)
        self._num_to_purge = max(MIN_NOTES, 2 * len(self._heap))


def report_of(request: Request, now_s: float, engine_limit_s: float | None = None) -> ErrorReport:
    """Say how long a late request took, how far it came, and whose limit it met.

    Args:
        request: One that is late.
        now_s: The monotonic clock.
        engine_limit_s: The engine's `request_timeout_s`, if it has one.
    """
    own_s = request.message.timeout_s
    if own_s is not None and (engine_limit_s is None or own_s <= engine_limit_s):
        limit, way_out = f"its timeout_s is {own_s:.3g} s", "Give it a longer timeout_s"
    else:
        limit = f"this engine's request_timeout_s is {engine_limit_s:.3g} s"
        way_out = "Start the engine with a longer request_timeout_s"
    return ErrorReport(
        RequestTimeoutError.code,
        f"the request was not over {now_s - request.arrival_s:.3g} s after its arrival, and "
        f"{limit}; it had {request.num_generated_tokens} of at most {request.message.max_tokens} "
        f"tokens. {way_out}, or ask for fewer tokens",
    )


def _unfinished(note: weakref.ref[Request]) -> Request | None:
    request = note()
    return None if request is None or request.status is Status.FINISHED else request
