"""Limits on the number of partial prefills, and on the number of long ones."""

from collections.abc import Sequence

from quire.config import SchedulerSettings
from quire.engine.request import Request
from quire.engine.scheduling.step_in_progress import StepInProgress


class PartialPrefills:
    """The limits on partial prefills, for one step.

    Args:
        settings: Limits on partial prefills.
        prompts: Running requests with more than one pending token, in the policy's order.
        step: Step with the tokens already scheduled for them.
    """

    def __init__(
        self, settings: SchedulerSettings, prompts: Sequence[Request], step: StepInProgress
    ) -> None:
        self._settings = settings
        lacking = [r.num_pending_tokens - step.chunks.get(r, 0) for r in prompts]
        self._num_partial = sum(1 for count in lacking if count > 0)
        self._num_long = sum(1 for count in lacking if self._is_long(count))
        self._last_rank = prompts[-1].rank if prompts else None

    def first_chunk(self, request: Request, pending: int, step: StepInProgress) -> int:
        """Return the number of tokens to start a request with; 0: it must wait.

        A request starts with all its pending tokens, or with all tokens that are left in the step:
        then it is the last one of the step. The limits do not apply to a request of a better rank
        than the last running prompt.
        """
        left = step.budget_left
        if pending <= left:
            return pending
        if not self._settings.enable_chunked_prefill:
            return 0 if step.num_tokens else left  # cut only if longer than an empty step
        if self._last_rank is not None and request.rank < self._last_rank:
            return left
        if self._num_partial >= self._settings.max_num_partial_prefills:
            return 0
        max_long = self._settings.max_long_partial_prefills
        return 0 if self._is_long(pending) and self._num_long >= max_long else left

    @property
    def allows_bypass(self) -> bool:
        """Whether prompts that fit the step may bypass a long prompt that has to wait.

        With chunked prefill the long prompt waits only for running prompts, so it cannot starve.
        Without, it waits for an empty step, and would starve.
        """
        return self._settings.enable_chunked_prefill

    def _is_long(self, pending: int) -> bool:
        return 0 < self._settings.long_prefill_token_threshold < pending
