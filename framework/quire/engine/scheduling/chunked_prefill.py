"""Limits on the number of partial prefills, and on the number of long ones.

They concern only requests that do not fit a step whole.
"""

from quire.config import SchedulerSettings
from quire.engine.request import Request
from quire.engine.scheduling.step_in_progress import StepInProgress


class PartialPrefills:
    """The limits on partial prefills, for one step.

    Args:
        settings: Limits on partial prefills.
        step: Step with the running prompts, and the tokens already scheduled for them.
    """

    def __init__(self, settings: SchedulerSettings, step: StepInProgress) -> None:
        self._settings = settings
        lacking = [r.num_prefill_tokens - step.chunks.get(r, 0) for r in step.prompts]
        self._num_partial = sum(1 for count in lacking if count > 0)
        self._num_long = sum(1 for count in lacking if self._is_long(count))
        self._last_rank = step.prompts[-1].rank if step.prompts else None

    def first_chunk(self, request: Request, pending: int, step: StepInProgress) -> int:
        """Return the number of tokens to start a request with; 0: it must wait.

        It starts with all tokens that are left in the step, so it is the last one of the step. The
        limits do not apply to a request of a better rank than the last running prompt.
        """
        left = step.budget_left
        if not self._settings.enable_chunked_prefill:
            return 0 if step.num_tokens else left  # cut only if longer than an empty step
        if self._last_rank is not None and request.rank < self._last_rank:
            return left
        if self._num_partial >= self._settings.max_num_partial_prefills:
            return 0
        max_long = self._settings.max_long_partial_prefills
        return 0 if self._is_long(pending) and self._num_long >= max_long else left

    def _is_long(self, pending: int) -> bool:
        return 0 < self._settings.long_prefill_token_threshold < pending
