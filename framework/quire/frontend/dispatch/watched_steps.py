"""Repeated failures of the engine's steps, which make a server unready.

A step is a failure if a plugin or the model failed on a request of it, and no request of it got a
token. A request that is refused, aborted or too slow says nothing about the engine.
"""

import logging
import time
from collections.abc import Callable, Sequence

from quire.errors import RequestFailedError
from quire.frontend.failure_streak import FailureStreak
from quire.messages import EngineOutput

logger = logging.getLogger(__name__)


class WatchedSteps:
    """The failures of requests since the last step that computed something.

    Args:
        now: Clock, in seconds.

    Attributes:
        cause: Message of the last failure, which a client may read.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.cause = ""
        self._streak = FailureStreak(now)

    @property
    def is_failing(self) -> bool:
        """Whether all requests have failed for a while, also recently."""
        return self._streak.is_failing

    @property
    def num_failures(self) -> int:
        """Number of requests in a row that failed."""
        return self._streak.num_failures

    def record(self, outputs: Sequence[EngineOutput]) -> None:
        """Record the outputs of one step."""
        if any(output.token_ids or _is_finished(output) for output in outputs):
            self._record_success()
            return
        for output in outputs:
            if output.error is not None and output.error.code == RequestFailedError.code:
                self._record_failure(output.error.message)

    def _record_success(self) -> None:
        if num_failures := self._streak.record_success():
            logger.warning("steps succeed again, after %d failed requests", num_failures)

    def _record_failure(self, message: str) -> None:
        self.cause = message
        if self._streak.record_failure():
            logger.error(
                "all of the last %d requests failed, for %.0f s, the last one with: %s",
                self.num_failures,
                self._streak.duration_s,
                message,
            )


def _is_finished(output: EngineOutput) -> bool:
    """Return whether a request ended without an error, and not by an abort."""
    return output.finish_reason not in (None, "error", "abort")
