"""Guard around a scheduling policy: its exceptions are logged and never stop the engine."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from quire.engine.scheduling.sort_key import NO_KEY, SortKey, sort_key
from quire.errors import RequestFailedError
from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy

logger = logging.getLogger(__name__)


class GuardedPolicy(SchedulingPolicy):
    """Calls another policy, and falls back to the queue's order where that one fails."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._has_failed = False

    def order(self, request: ScheduledView) -> SortKey:
        """Return the policy's key, normalized so that any two keys can be compared.

        Raises:
            RequestFailedError: The policy failed; without a key the request cannot be queued.
        """
        try:
            key = self._policy.order(request)
            return NO_KEY if key is None else sort_key(key)
        except Exception as error:
            self._log()
            raise RequestFailedError(f"{self._name} failed: {type(error).__name__}") from error

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        """Return the policy's decision; True if it fails."""
        try:
            return bool(self._policy.admits(request, _ReadOnly(running)))
        except Exception:  # noqa: BLE001 - the edge of a plugin; it is logged
            self._log()
            return True

    def victim(self, running: Sequence[ScheduledView]) -> int:
        """Return the policy's choice; the last in order if it fails or the index is invalid."""
        try:
            index = self._policy.victim(_ReadOnly(running))
            running[index]
            return index % len(running)
        except Exception:  # noqa: BLE001 - the edge of a plugin; it is logged
            self._log()
            return len(running) - 1

    def began(self, request: ScheduledView) -> None:
        """Notify the policy that a request has started running."""
        self._notify(self._policy.began, request)

    def ended(self, request: ScheduledView) -> None:
        """Notify the policy that a request has stopped running."""
        self._notify(self._policy.ended, request)

    @property
    def _name(self) -> str:
        kind = type(self._policy)
        return f"the scheduling policy {kind.__module__}.{kind.__qualname__}"

    def _notify(self, what: Callable[[ScheduledView], None], request: ScheduledView) -> None:
        try:
            what(request)
        except Exception:  # noqa: BLE001 - the edge of a plugin; it is logged
            self._log()

    def _log(self) -> None:
        """Log the current exception with its traceback, the first time only."""
        if not self._has_failed:
            logger.exception(
                "%s failed; its decisions fall back to the order of the queue. Later failures are "
                "not logged",
                self._name,
            )
        self._has_failed = True


class _ReadOnly(Sequence[ScheduledView]):
    """Read-only view of the scheduler's list of running requests; nothing is copied."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[ScheduledView]) -> None:
        self._requests = requests

    def __len__(self) -> int:
        return len(self._requests)

    @overload
    def __getitem__(self, index: int) -> ScheduledView: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ScheduledView]: ...

    def __getitem__(self, index: int | slice) -> ScheduledView | Sequence[ScheduledView]:
        return tuple(self._requests[index]) if isinstance(index, slice) else self._requests[index]

    def __iter__(self) -> Iterator[ScheduledView]:
        return iter(self._requests)
