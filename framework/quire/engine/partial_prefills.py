"""How many prompts may be in pieces at the same time, and how many of those may be long."""

from collections.abc import Sequence

from quire.config import SchedulerSettings
from quire.engine.request import Request
from quire.engine.step_in_progress import StepInProgress


class PartialPrefills:
    """The limits on partial prefills, for one step.

    Args:
        settings: The limits.
        prompts: The running requests that lack more than one token.
        step: What they were given.
    """

    def __init__(
        self, settings: SchedulerSettings, prompts: Sequence[Request], step: StepInProgress
    ) -> None:
        self._settings = settings
        lacking = [r.num_pending_tokens - step.chunks.get(r, 0) for r in prompts]
        self._num_partial = sum(1 for count in lacking if count > 0)
        self._num_long = sum(1 for count in lacking if self._is_long(count))

    def share(self, pending: int, step: StepInProgress) -> int:
        """Return how many tokens a request that lacks so many may begin with; 0: it must wait."""
        left = step.budget_left
        if pending <= left:
            return pending
        if not self._settings.enable_chunked_prefill:
            return 0 if step.num_tokens else left  # longer than any step: cut after all
        if self._num_partial >= self._settings.max_num_partial_prefills:
            return 0
        most_long = self._settings.max_long_partial_prefills
        return 0 if self._is_long(pending) and self._num_long >= most_long else left

    def may_be_passed(self, pending: int) -> bool:
        """Whether shorter prompts may go past one that must wait: only past a long one."""
        return self._is_long(pending)

    def count(self, pending: int, share: int) -> None:
        """Note a request that has begun."""
        if share < pending:
            self._num_partial += 1
            self._num_long += self._is_long(pending)

    def _is_long(self, pending: int) -> bool:
        return 0 < self._settings.long_prefill_token_threshold < pending
