"""The interface of a scheduling policy: queue order, admission and preemption of requests.

The scheduler manages budgets, blocks and steps. A policy makes three decisions about requests:

    order     called once, when a request is queued
    admits    called in each step in which the first request of the queue could start otherwise. It
              may be called many times for one request, so it must not count its calls
    victim    called when the pool has too few free blocks

A policy that tracks the running requests does so in `began` and `ended`. No method is called per
token. Requests and lists that are passed to a policy are read-only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SchedulingPolicyCapabilities:
    """Properties of a policy, declared at registration.

    Attributes:
        reads_priority: Whether the policy uses `priority`. If not, requests with a priority other
            than 0 are refused, because the priority would have no effect.
    """

    reads_priority: bool = False


class ScheduledView(Protocol):
    """Read-only view of a request for a policy."""

    @property
    def request_id(self) -> str:
        """Id of the request in the engine."""

    @property
    def priority(self) -> int:
        """Priority set by the caller; lower values go first."""

    @property
    def arrival_s(self) -> float:
        """Time of arrival on the monotonic clock, in seconds."""

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens."""

    @property
    def num_generated_tokens(self) -> int:
        """Number of tokens generated so far."""

    @property
    def num_pending_tokens(self) -> int:
        """Number of known tokens whose KV is not computed yet."""

    @property
    def max_total_tokens(self) -> int:
        """Maximum number of tokens of prompt and completion together."""

    @property
    def num_preemptions(self) -> int:
        """Number of times the request has been preempted."""

    @property
    def adapter_name(self) -> str | None:
        """Name of the request's LoRA adapter, if any."""


class SchedulingPolicy:
    """Queue order, admission and preemption. One instance per engine; it may keep state.

    Every decision has a default; all together, requests are served in the order of their arrival.
    """

    def order(self, request: ScheduledView) -> Any:
        """Return the request's sort key; the smallest goes first, ties go by arrival.

        A key must be None, a number (not NaN), text, bytes, or a tuple of these, so that any two
        keys can be compared. None sorts before numbers; then follow text, bytes and tuples. A
        request keeps its key until it ends. The default is None for all requests.
        """
        del request

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        """Return whether the first request of the queue may start beside the running requests.

        Called last, when all other conditions are met, and again in the next step after False. It
        is not called while no request runs, so that the engine always makes progress.

        Args:
            request: First request of the queue.
            running: Running requests in their order; valid during the call only.
        """
        del request, running
        return True

    def victim(self, running: Sequence[ScheduledView]) -> int:
        """Return the index in `running` of the request to preempt.

        Args:
            running: Running requests in their order; never empty, valid during the call only.
        """
        return len(running) - 1

    def began(self, request: ScheduledView) -> None:
        """Handle that a request has started to run, for the first time or after a preemption."""
        del request

    def ended(self, request: ScheduledView) -> None:
        """Handle that a request has stopped running: it has ended, or was preempted."""
        del request
