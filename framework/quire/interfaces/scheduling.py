"""The interface of a scheduling policy: who goes first, who may begin, and who has to go.

The scheduler keeps the budgets, the blocks and the steps; a policy answers three questions about
requests and nothing else:

    order     once, when a request is queued
    admits    each step in which the first in the queue would begin otherwise: it may be asked of
              the same request again and again, so it must not count or remember how often
    victim    when the pool is short

Who keeps an account of the requests that run does it in `began` and `ended`. Nothing here is called
once a token. Requests and lists are to be looked at only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class SchedulingPolicyCapabilities:
    """What a policy says of itself at registration.

    Attributes:
        reads_priority: Whether it looks at `priority`. Under a policy that does not, a request with
            another priority than 0 is refused, as nobody would keep it.
    """

    reads_priority: bool = False


class ScheduledView(Protocol):
    """What a policy may know of a request."""

    @property
    def request_id(self) -> str:
        """The engine's id."""

    @property
    def priority(self) -> int:
        """As the caller gave it; lower goes first."""

    @property
    def arrival_s(self) -> float:
        """When it arrived, on the monotonic clock."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def num_generated_tokens(self) -> int:
        """Tokens of the answer so far."""

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens whose KV is still to be computed."""

    @property
    def max_total_tokens(self) -> int:
        """Prompt and answer together, at most."""

    @property
    def num_preemptions(self) -> int:
        """How often it had to go already."""

    @property
    def adapter_name(self) -> str | None:
        """The LoRA adapter that it names."""


class SchedulingPolicy(ABC):
    """Order, admission and the choice of a victim. One instance an engine; it may keep state."""

    @abstractmethod
    def order(self, request: ScheduledView) -> Any:
        """Return a key; the smallest goes first, and among equals the one that arrived first.

        A key is plain data, so that any two have an order: None, a number (not NaN), text, bytes,
        or a tuple of these. None goes before numbers, then come text, bytes and tuples. A request
        keeps its key until it is over.
        """

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        """Whether the first in the queue may begin beside those that run.

        Asked last, when all else fits, and again in the next step if the answer is no. As long as
        nothing runs it is not asked: something must go on.

        Args:
            request: The first in the queue.
            running: Those that run, in their order; good during the call.
        """
        del request, running
        return True

    def victim(self, running: Sequence[ScheduledView]) -> int:
        """Return the index in `running` of the request that must give its blocks back.

        Args:
            running: Those that run, in their order; never empty, and good during the call.
        """
        return len(running) - 1

    def began(self, request: ScheduledView) -> None:
        """The request runs from now on, for the first time or again after a preemption."""
        del request

    def ended(self, request: ScheduledView) -> None:
        """The request, which ran, does no longer: it is over, or preempted and waits again."""
        del request
