"""Refusal of requests that a queue has no room for, or that would wait in it for too long."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from quire.errors import OverloadedError
from quire.messages import EngineOutputs, EngineRequest

MARGIN = 1.25  # of a request's time over the estimate: under overload all queue up to the limit


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


class QueueGate(ABC):
    """The open requests of an engine. Its caller holds a lock around every call that changes it.

    Args:
        limits: Limits on waiting requests.
    """

    def __init__(self, limits: QueueLimits | None = None) -> None:
        self._limits = limits or QueueLimits()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of open requests."""

    @abstractmethod
    def add(self, requests: Iterable[EngineRequest]) -> None:
        """Count requests that are given to the engine."""

    @abstractmethod
    def take(self, outputs: EngineOutputs, num_generated: int) -> None:
        """Take the outputs of a step, with the number of tokens that it generated in all."""

    @abstractmethod
    def remove(self, request_ids: Iterable[str]) -> None:
        """Forget requests that ended before the engine ended them; unknown ids are ignored."""

    @abstractmethod
    def take_hopeless(self) -> list[str]:
        """Return the ids of requests that are about to begin, and could not end in their time."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Number of requests that wait for others to end."""

    @property
    @abstractmethod
    def wait_s(self) -> float:
        """Seconds that a new request would wait, as far as anything was measured."""

    @abstractmethod
    def _run_s(self, max_tokens: int) -> float:
        """Return the seconds that a completion takes once it is begun beside the running ones."""

    @property
    def is_full(self) -> bool:
        """Whether no further request may wait."""
        return len(self) >= self._limits.max_running + self._limits.max_queued

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
