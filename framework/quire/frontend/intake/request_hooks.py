"""The plugins' `request_received`: calls for each request, and counts of failures in a row.

A plugin that raises fails its request. A server whose plugin raises on every request is useless and
must report that it is not ready, so that load balancers avoid it. A plugin that fails on some
requests only must not count as failing when such requests come in quick succession. Therefore the
failures must last for a minimum time without a request that passes in between. A server that gets
no requests cannot show that the plugin works again, so some time after the last failure a plugin no
longer counts as failing, until it fails once more.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from quire.errors import RequestError
from quire.frontend.plugin_failure import plugin_failure
from quire.messages import EngineRequest
from quire.plugins.registry import Source

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # in a row, after which a plugin counts as failing
MIN_FAILING_S = 10.0  # minimum time between the first and the last of them
RETRY_AFTER_S = 30.0  # since the last failure, after which it no longer counts as failing

RequestHook = tuple[Source, Callable[..., Any]]


class WatchedHook:
    """A plugin's `request_received`, with the plugin's failures since its last success.

    Args:
        source: Plugin.
        call: Its hook.
        now: Clock, in seconds.

    Attributes:
        num_failures: Number of requests in a row on which it failed.
    """

    def __init__(
        self, source: Source, call: Callable[..., Any], now: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = source
        self.num_failures = 0
        self._call = call
        self._now = now
        self._first_failure_s = 0.0
        self._last_failure_s = 0.0
        self._keeps_failing = False

    @property
    def is_failing(self) -> bool:
        """Whether it has failed on every request for a while, also recently."""
        return self._keeps_failing and self._last_failure_s > self._now() - RETRY_AFTER_S

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
        if self._keeps_failing:
            logger.warning(
                "plugin %s works again, after %d failures", self.source, self.num_failures
            )
        self.num_failures = 0
        self._keeps_failing = False

    def _record_failure(self) -> None:
        self._last_failure_s = self._now()
        if self.num_failures == 0:
            self._first_failure_s = self._last_failure_s
        self.num_failures += 1
        duration_s = self._last_failure_s - self._first_failure_s
        has_lasted = self.num_failures >= MAX_FAILURES and duration_s >= MIN_FAILING_S
        if has_lasted and not self._keeps_failing:
            self._keeps_failing = True
            logger.error(
                "plugin %s failed in request_received on all of the last %d requests, for %.0f s; "
                "fix the plugin, or leave it out with -p no:%s",
                self.source,
                self.num_failures,
                duration_s,
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
