"""The plugins' `request_received`: calls for each request, and counts of failures in a row.

A plugin that raises fails its request. A server whose plugin raises on every request is not ready,
by the rule of `failure_streak`.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from quire.errors import RequestError
from quire.frontend.failure_streak import FailureStreak
from quire.frontend.plugin_failure import plugin_failure
from quire.messages import EngineRequest
from quire.plugins.registry import Source

logger = logging.getLogger(__name__)

RequestHook = tuple[Source, Callable[..., Any]]


class WatchedHook:
    """A plugin's `request_received`, with the plugin's failures since its last success.

    Args:
        source: Plugin.
        call: Its hook.
        now: Clock, in seconds.

    """

    def __init__(
        self, source: Source, call: Callable[..., Any], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = source
        self._call = call
        self._streak = FailureStreak(now)

    @property
    def is_failing(self) -> bool:
        """Whether it has failed on every request for a while, also recently."""
        return self._streak.is_failing

    @property
    def num_failures(self) -> int:
        """Number of requests in a row on which it failed."""
        return self._streak.num_failures

    def received(self, request: EngineRequest) -> None:
        """Call the hook for a request.

        Raises:
            RequestError: The plugin refuses it.
            RequestFailedError: The plugin failed.
        """
        try:
            self._call(request=request)
        except RequestError:
            self._record_success()
            raise
        except Exception as error:
            action = f"in request_received{_attributes_hint(error, request)}"
            failure = plugin_failure(
                error, f"plugin {self.source}", action, subject="on this request"
            )
            self._record_failure()
            raise failure from error
        self._record_success()

    def _record_success(self) -> None:
        if num_failures := self._streak.record_success():
            logger.warning("plugin %s works again, after %d failures", self.source, num_failures)

    def _record_failure(self) -> None:
        if self._streak.record_failure():
            logger.error(
                "plugin %s failed in request_received on all of the last %d requests, for %.0f s; "
                "fix the plugin, or leave it out with -p no:%s",
                self.source,
                self.num_failures,
                self._streak.duration_s,
                self.source.plugin,
            )


def _attributes_hint(error: Exception, payload: EngineRequest) -> str:
    """Return a hint with the existing attributes if the hook read one that does not exist."""
    if not isinstance(error, AttributeError) or error.obj is not payload:
        return ""
    names, missing = payload.__struct_fields__, str(error.name)
    meant = next((name for name in names if missing.endswith(f"_{name}")), None)
    hint = f"; did you mean {meant!r}?" if meant else ""
    return (
        f": {type(payload).__name__} has no {missing!r}{hint} (it has {', '.join(names)}; "
        "see docs/hooks.md)"
    )
