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

from quire.frontend.dispatch.queue_gate import QueueGate, QueueLimits
from quire.frontend.dispatch.service_rate import ServiceRate
from quire.messages import EngineOutputs, EngineRequest, EngineStats, SharedLoad

UNKNOWN_COMPLETION = 256  # tokens expected at most before any completion has ended
NUM_NEXT = 64  # waiting requests, the first, that may begin within a step or two
RECENT = 64  # completions; older ones count 1/e as much for the length of the next


@dataclass(slots=True)
class _Work:
    """Work of a request whose completion has no token yet."""

    num_left: int  # tokens of the prompt that are not computed yet
    num_expected: float  # tokens of the completion
    deadline_s: float  # infinite without one, and once the request is reported as hopeless


class Backlog(QueueGate):
    """The open requests of one engine, all of which are given to it from here.

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
        super().__init__(limits)
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
        return self._work_tokens(num_waiting) / rate

    def load(self) -> SharedLoad:
        """Return the work as several front ends receive it; steps are counted elsewhere."""
        num_waiting = self.num_waiting
        return SharedLoad(
            num_open=len(self._open),
            num_waiting=num_waiting,
            work_tokens=self._work_tokens(num_waiting),
            tokens_per_s=self._rate.per_second(self._clock()),
            completion_tokens=self._completion_tokens,
            token_s=self._token_s,
        )

    @property
    def _completion_tokens(self) -> float:
        """Number of tokens that a completion has on average, lately."""
        if self._num_ended == 0:
            return UNKNOWN_COMPLETION
        return self._num_generated / self._num_ended

    def _work_tokens(self, num_waiting: int) -> float:
        """Return the tokens of all prompts, and of the completions that wait."""
        num_unserved = max(1, len(self._unserved))  # it may have changed meanwhile
        return self._prompt_tokens + num_waiting / num_unserved * self._expected_tokens

    def _run_s(self, max_tokens: int) -> float:
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
