"""The work that waits for an engine with several front ends, as one of them knows it.

The engine's process measures the work of all, and tells each front end with the outputs of steps.
Requests that it had not taken by then are added here; those of other front ends that are on their
way to it are unknown, until its own limit refuses what is too much.
"""

import time
from collections.abc import Callable, Iterable

from quire.frontend.dispatch.queue_gate import QueueGate, QueueLimits
from quire.messages import EngineOutputs, EngineRequest, SharedLoad


class SharedBacklog(QueueGate):
    """The open requests of all front ends of an engine.

    Args:
        limits: Limits on waiting requests, of all front ends together.
        clock: Clock of the engine's reports, in seconds.
    """

    def __init__(
        self, limits: QueueLimits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(limits)
        self._clock = clock
        self._load = SharedLoad()
        self._hopeless: list[str] = []
        self._sent: dict[str, tuple[float, EngineRequest]] = {}  # not taken yet, with their times

    def __len__(self) -> int:
        return self._load.num_open + len(self._sent)

    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Count requests that are given to the engine."""
        now_s = self._clock()
        self._sent.update({each.request_id: (now_s, each) for each in requests})

    def take(self, outputs: EngineOutputs, num_generated: int) -> None:
        """Take the outputs of a step, with the engine's report of its work."""
        del num_generated  # the engine has counted it
        if outputs.load is not None:
            self._load = outputs.load
            self._hopeless += outputs.load.hopeless
        self._sent = {
            request_id: sent
            for request_id, sent in self._sent.items()
            if sent[0] > self._load.taken_s
        }

    def remove(self, request_ids: Iterable[str]) -> None:
        """Forget requests that ended before the engine ended them; unknown ids are ignored."""
        for request_id in request_ids:
            self._sent.pop(request_id, None)

    def take_hopeless(self) -> list[str]:
        """Return the ids of requests that the engine has found to be so, each once."""
        found, self._hopeless = self._hopeless, []
        return found

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for others to end."""
        num_free = max(0, self._limits.max_running - self._load.num_open)
        return self._load.num_waiting + max(0, len(self._sent) - num_free)

    @property
    def wait_s(self) -> float:
        """Seconds that a new request would wait, as far as anything was measured."""
        rate = self._load.tokens_per_s
        if not self.num_waiting or not rate:
            return 0.0
        return (self._load.work_tokens + self._sent_tokens()) / rate

    def _run_s(self, max_tokens: int) -> float:
        return min(max_tokens, self._load.completion_tokens) * self._load.token_s

    def _sent_tokens(self) -> float:
        """Return the tokens of the work that the engine has not taken."""
        longest = self._load.completion_tokens
        return sum(
            len(request.token_ids) + min(request.max_tokens, longest)
            for _, request in self._sent.values()
        )
