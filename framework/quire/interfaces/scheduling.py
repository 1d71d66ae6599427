"""The interface of a scheduling policy: who goes first, who may begin, and who has to go.

The scheduler keeps the budgets, the blocks and the steps; a policy answers three questions about
requests and nothing else. It is asked once when a request is queued, once when it could begin, and
when the pool is short; never once a token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol


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

        Keys are compared with each other only. A request keeps its key until it is over.
        """

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        """Whether the first in the queue may begin beside those that run, if it fits.

        As long as nothing runs it is not asked: something must go on.
        """
        del request, running
        return True

    def victim(self, running: Sequence[ScheduledView]) -> int:
        """Return the index in `running` of the request that must give its blocks back.

        Args:
            running: Those that run, in their order; never empty.
        """
        return len(running) - 1
