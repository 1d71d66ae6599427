"""How many prompts may be in pieces at the same time, and how many of those may be long."""

from collections.abc import Sequence

from quire.config import SchedulerSettings
from quire.engine.request import Request
from quire.engine.scheduling.step_in_progress import StepInProgress


class PartialPrefills:
    """The limits on partial prefills, for one step.

    Args:
        settings: The limits.
        prompts: The running requests that lack more than one token, in the policy's order.
        step: What they were given.
    """

    def __init__(
        self, settings: SchedulerSettings, prompts: Sequence[Request], step: StepInProgress
    ) -> None:
        self._settings = settings
        lacking = [r.num_pending_tokens - step.chunks.get(r, 0) for r in prompts]
        self._num_partial = sum(1 for count in lacking if count > 0)
        self._num_long = sum(1 for count in lacking if self._is_long(count))
        self._last_rank = prompts[-1].rank if prompts else None

    def share(self, request: Request, pending: int, step: StepInProgress) -> int:
        """Return how many tokens a request that lacks so many may begin with; 0: it must wait.

        It may begin with all that it lacks, or with all that is left. So no request begins in a
        step behind one that began in pieces.

        The limits do not hold up a request that goes before one of the running prompts.
        """
        left = step.budget_left
        if pending <= left:
            return pending
        if not self._settings.enable_chunked_prefill:
            return 0 if step.num_tokens else left  # longer than any step: cut after all
        if self._last_rank is not None and request.rank < self._last_rank:
            return left
        if self._num_partial >= self._settings.max_num_partial_prefills:
            return 0
        most_long = self._settings.max_long_partial_prefills
        return 0 if self._is_long(pending) and self._num_long >= most_long else left

    @property
    def may_be_passed(self) -> bool:
        """Whether prompts that fit a step whole may go past one that waits for its turn in pieces.

        That cannot starve it: its turn depends only on prompts that are being computed. It would
        starve if it waited for an empty step.
        """
        return self._settings.enable_chunked_prefill

    def _is_long(self, pending: int) -> bool:
        return 0 < self._settings.long_prefill_token_threshold < pending
