"""A scheduling policy with the host around it: one that fails costs its order, not the engine."""

import logging
from collections.abc import Sequence
from typing import Any

from quire.errors import RequestFailedError
from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy

logger = logging.getLogger(__name__)


class GuardedPolicy(SchedulingPolicy):
    """Asks another policy, and goes on in the order of the queue where that one fails."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._has_failed = False

    def order(self, request: ScheduledView) -> Any:
        """Return its key.

        Raises:
            RequestFailedError: It failed; without a key the request has no place in the queue.
        """
        try:
            key = self._policy.order(request)
            key < key  # noqa: B015 - what cannot be compared fails here, not in the queue
        except Exception as error:
            self._log()
            raise RequestFailedError(f"{self._name} failed: {type(error).__name__}") from error
        return key

    def admits(self, request: ScheduledView, running: Sequence[ScheduledView]) -> bool:
        """Return its word; true if it fails."""
        try:
            return bool(self._policy.admits(request, running))
        except Exception:  # noqa: BLE001 - the edge of a plugin; it is logged
            self._log()
            return True

    def victim(self, running: Sequence[ScheduledView]) -> int:
        """Return its choice; the last in order if it fails or names nobody."""
        try:
            index = self._policy.victim(running)
            running[index]
        except Exception:  # noqa: BLE001 - the edge of a plugin; it is logged
            self._log()
            return len(running) - 1
        return index % len(running)

    @property
    def _name(self) -> str:
        kind = type(self._policy)
        return f"the scheduling policy {kind.__module__}.{kind.__qualname__}"

    def _log(self) -> None:
        """Log the error at hand with its traceback, the first time."""
        if not self._has_failed:
            logger.exception("%s failed; what it cannot answer goes by the queue", self._name)
        self._has_failed = True
