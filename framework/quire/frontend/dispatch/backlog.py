"""The work that waits for an engine, and an estimate of how long a new request would wait.

Work is counted in tokens: those of a prompt that are not computed yet, and those that its
completion is expected to have. The estimate divides the prompts of all requests and the completions
of the waiting ones by the rate at which the engine served such work lately, while any was left. It
assumes the order of arrival, and is 0 while nothing waits or nothing was measured.

The engine says how many tokens a step computed, and not of which prompts. They count for the
prompts that arrived first, until the first token of a completion says that all of its prompt is
there. So each token of a prompt counts once, also one that was cached.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from quire.errors import OverloadedError
from quire.frontend.dispatch.service_rate import ServiceRate
from quire.messages import EngineOutputs, EngineRequest, EngineStats

UNKNOWN_COMPLETION = 256  # tokens expected at most before any completion has ended
NUM_NEXT = 64  # waiting requests, the first, that may begin within a step or two
MARGIN = 1.25  # of a request's time over the estimate: under overload all queue up to the limit
RECENT = 64  # completions; older ones count 1/e as much for the length of the next


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits on waiting requests.

    Attributes:
        max_running: Number of requests that the engine runs at the same time.
        max_queued: Number of requests that may wait.
        max_wait_s: Estimated wait, in seconds, from which on a request is refused; None: any.
    """

    max_running: int = 2**31
    max_queued: int = 2**31
    max_wait_s: float | None = None


@dataclass(slots=True)
class _Work:
    """Work of a request whose completion has no token yet."""

    num_left: int  # tokens of the prompt that are not computed yet
    num_expected: float  # tokens of the completion
    deadline_s: float  # infinite without one, and once the request is reported as hopeless


class Backlog:
    """The open requests of one engine. Its caller holds a lock around every call that changes it.

    Args:
        limits: Limits on waiting requests.
        clock: Function that returns the time in seconds, on the clock of the requests' arrivals.
        max_timeout_s: Timeout of requests that name none, and the maximum for all; None: no limit.
    """

    def __init__(
        self,
        limits: QueueLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_timeout_s: float | None = None,
    ) -> None:
        self._limits = limits or QueueLimits()
        self._clock = clock
        self._max_timeout_s = max_timeout_s
        self._rate = ServiceRate()
        self._generation_rate = ServiceRate()  # the part of it that is completions
        self._open: set[str] = set()
        self._unserved: dict[str, _Work] = {}  # those without a token, in the order of arrival
        self._prompt_tokens = 0  # left of these
        self._expected_tokens = 0.0  # of their completions
        self._stats = EngineStats()
        self._num_ended = 0.0  # lately
        self._num_generated = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Count requests that are given to the engine."""
        for rate in self._rates:
            rate.begin(self._clock())
        for request in requests:
            expected = min(request.max_tokens, self._completion_tokens)
            deadline_s = request.deadline_s(self._max_timeout_s)
            work = _Work(len(request.token_ids), expected, deadline_s)
            self._open.add(request.request_id)
            self._unserved[request.request_id] = work
            self._prompt_tokens += work.num_left
            self._expected_tokens += expected

    def take(self, outputs: EngineOutputs, num_generated: int) -> None:
        """Take the outputs of a step, with the number of tokens that it generated in all."""
        self._stats = outputs.stats
        served, num_ended = num_generated, 0
        num_computed = outputs.stats.num_scheduled_tokens - num_generated
        for output in outputs.outputs:
            if output.token_ids or output.finish_reason is not None:
                num_left = self._end_waiting(output.request_id)
                num_computed -= max(0, num_left - output.num_cached_tokens)
                served += num_left
            if output.finish_reason is not None:
                num_ended += 1
                self._open.discard(output.request_id)
        served += self._compute_prompts(num_computed)
        now_s = self._clock()
        self._rate.count(served, now_s)
        self._generation_rate.count(num_generated, now_s)
        self._num_generated += num_generated
        self._num_ended += num_ended
        if self._num_ended > RECENT:
            self._num_generated *= RECENT / self._num_ended
            self._num_ended = RECENT
        self._end_if_idle()

    def remove(self, request_ids: Iterable[str]) -> None:
        """Forget requests that ended before the engine ended them; unknown ids are ignored."""
        for request_id in request_ids:
            if request_id not in self._open:
                continue
            if request_id in self._unserved:
                self._end_waiting(request_id)
            else:
                self._num_ended += 1
            self._open.remove(request_id)
        self._end_if_idle()

    def take_hopeless(self) -> list[str]:
        """Return the ids of requests that are about to begin, and could not end in their time.

        To run them would take the time of those behind them, which would become hopeless, too: so
        an engine that is slower than it was when they were queued would complete nothing. Each is
        returned once.
        """
        if not self.num_waiting or not (token_s := self._token_s):
            return []
        now_s, found = self._clock(), []
        next_ones = islice(self._unserved.items(), self._num_begun, None)
        for request_id, work in islice(next_ones, NUM_NEXT):
            if work.deadline_s < now_s + work.num_expected * token_s:
                work.deadline_s = math.inf
                found.append(request_id)
        return found

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for others to end, and not for their grammars."""
        stats, num_waiting = self._stats, len(self._open) - self._stats.num_grammars_waiting
        if stats.num_waiting > stats.num_grammars_waiting:
            num_waiting -= stats.num_running
        else:  # those that the engine has not seen yet start at once, if there are slots
            num_waiting -= self._limits.max_running
        return max(0, min(num_waiting, len(self._unserved)))

    @property
    def wait_s(self) -> float:
        """Seconds that a new request would wait, as far as anything was measured."""
        num_waiting = self.num_waiting
        rate = self._rate.per_second(self._clock()) if num_waiting else None
        if rate is None:
            return 0.0
        num_unserved = max(1, len(self._unserved))  # it may have changed meanwhile
        expected = num_waiting / num_unserved * self._expected_tokens
        return (self._prompt_tokens + expected) / rate

    @property
    def is_full(self) -> bool:
        """Whether no further request may wait."""
        return len(self._open) >= self._limits.max_running + self._limits.max_queued

    @property
    def may_refuse(self) -> bool:
        """Whether there are requests that would be refused; false while none waits."""
        return self.num_waiting > 0 or self.is_full

    def check_queue(self) -> None:
        """Refuse a request while the queue is full.

        Raises:
            OverloadedError: It must be sent again later.
        """
        if self.is_full:
            raise OverloadedError(
                f"{self._limits.max_queued} requests are queued beyond those that can run "
                "(max_num_queued); try again later"
            )

    def check_room(self, left_s: float, max_tokens: int, *, is_urgent: bool = False) -> None:
        """Refuse a request that cannot be queued, would wait too long, or would not end in time.

        Args:
            left_s: Seconds that the request has; may be infinite.
            max_tokens: Maximum number of tokens of its completion.
            is_urgent: Whether it may go before others, so that the estimate does not apply.

        Raises:
            OverloadedError: It must be sent again later.
        """
        self.check_queue()
        limits = self._limits
        wait_s = 0.0 if is_urgent else self.wait_s
        run_s = self._run_s(max_tokens) if wait_s else 0.0
        if (wait_s + run_s) * MARGIN > left_s:
            raise OverloadedError(
                f"the queue is about {wait_s:.2g} s long, a completion takes about {run_s:.2g} s, "
                f"and this request has {left_s:.2g} s left, of which these may take "
                f"{1 / MARGIN:.0%}; try again later, or give it a longer timeout_s"
            )
        if limits.max_wait_s is not None and wait_s > limits.max_wait_s:
            raise OverloadedError(
                f"the queue is about {wait_s:.2g} s long, and requests may wait for "
                f"{limits.max_wait_s:g} s (max_queue_wait_s); try again later"
            )

    @property
    def _completion_tokens(self) -> float:
        """Number of tokens that a completion has on average, lately."""
        if self._num_ended == 0:
            return UNKNOWN_COMPLETION
        return self._num_generated / self._num_ended

    def _run_s(self, max_tokens: int) -> float:
        """Return the seconds that a completion takes once it is begun beside the running ones."""
        num_tokens = min(max_tokens, self._completion_tokens)
        return num_tokens * self._token_s

    @property
    def _token_s(self) -> float:
        """Seconds from a token of a running completion to its next; 0: unknown."""
        rate = self._generation_rate.per_second(self._clock())
        return 0.0 if rate is None else self._stats.num_running / rate

    def _compute_prompts(self, num_computed: int) -> int:
        """Count computed tokens for the prompts that are in progress; return how many did count."""
        num_left = num_computed = max(0, num_computed)
        for work in islice(self._unserved.values(), self._num_begun):
            num_tokens = min(num_left, work.num_left)
            work.num_left -= num_tokens
            num_left -= num_tokens
        self._prompt_tokens -= num_computed - num_left
        return num_computed - num_left

    @property
    def _num_begun(self) -> int:
        """Number of requests without a token, the first to arrive, that the engine has begun."""
        num_served = len(self._open) - len(self._unserved)
        num_begun = self._stats.num_running - num_served + self._stats.num_grammars_waiting
        return max(0, num_begun)

    @property
    def _rates(self) -> tuple[ServiceRate, ServiceRate]:
        return self._rate, self._generation_rate

    def _end_waiting(self, request_id: str) -> int:
        """Count no more work of a request as waiting; return what was left of its prompt."""
        work = self._unserved.pop(request_id, None)
        if work is None:
            return 0
        self._prompt_tokens -= work.num_left
        self._expected_tokens = max(0.0, self._expected_tokens - work.num_expected)
        return work.num_left

    def _end_if_idle(self) -> None:
        """Measure nothing while no request waits for its first token: the engine may idle then."""
        if not self._unserved:
            self._expected_tokens = 0.0  # without the rounding of sums
            for rate in self._rates:
                rate.end(self._clock())
