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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import RequestError, RequestFailedError
from quire.messages import EngineRequest
from quire.plugins.registry import Source

logger = logging.getLogger(__name__)

MAX_FAILURES = 5  # in a row, after which a plugin counts as failing
MIN_FAILING_S = 10.0  # minimum time between the first and the last of them
RETRY_AFTER_S = 30.0  # since the last failure, after which it no longer counts as failing

RequestHook = tuple[Source, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class FailingPlugin:
    """A plugin whose hook has failed on every request for a while."""

    source: Source
    num_failures: int


@dataclass(slots=True)
class _HookState:
    """A hook, and its failures since its last success."""

    source: Source
    call: Callable[..., Any]
    num_failures: int = 0
    first_failure_s: float = 0.0
    last_failure_s: float = 0.0
    is_failing: bool = False


class RequestHooks:
    """Calls every plugin's `request_received`.

    Args:
        hooks: Hooks, each with its plugin.
        now: Clock, in seconds.
    """

    def __init__(
        self, hooks: Sequence[RequestHook], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._hooks = [_HookState(source, call) for source, call in hooks]
        self._now = now

    def received(self, request: EngineRequest) -> None:
        """Call the hook of every plugin for a request.

        Raises:
            RequestError: A plugin refuses it.
            RequestFailedError: A plugin failed.
        """
        for hook in self._hooks:
            try:
                hook.call(request=request)
            except RequestError:
                _record_success(hook)
                raise
            except Exception as error:
                self._record_failure(hook, error, request)
                raise RequestFailedError(
                    f"plugin {hook.source} failed on this request; see the log"
                ) from error
            _record_success(hook)

    def failing(self) -> list[FailingPlugin]:
        """Return the plugins that have failed on every request for a while, also recently."""
        since_s = self._now() - RETRY_AFTER_S
        return [
            FailingPlugin(hook.source, hook.num_failures)
            for hook in self._hooks
            if hook.is_failing and hook.last_failure_s > since_s
        ]

    def _record_failure(self, hook: _HookState, error: Exception, request: EngineRequest) -> None:
        hook.last_failure_s = self._now()
        if hook.num_failures == 0:
            hook.first_failure_s = hook.last_failure_s
        hook.num_failures += 1
        hint = _attributes_hint(error, request)
        logger.exception("plugin %s failed in request_received%s", hook.source, hint)
        duration_s = hook.last_failure_s - hook.first_failure_s
        has_lasted = hook.num_failures >= MAX_FAILURES and duration_s >= MIN_FAILING_S
        if has_lasted and not hook.is_failing:
            hook.is_failing = True
            logger.error(
                "plugin %s failed in request_received on all of the last %d requests, for %.0f s; "
                "fix the plugin, or leave it out with -p no:%s",
                hook.source,
                hook.num_failures,
                duration_s,
                hook.source.plugin,
            )


def _record_success(hook: _HookState) -> None:
    if hook.is_failing:
        logger.warning("plugin %s works again, after %d failures", hook.source, hook.num_failures)
    hook.num_failures = 0
    hook.is_failing = False


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
