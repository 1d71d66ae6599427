"""Guard around the scheduler side of a KV store: one that raises or misbehaves is switched off."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from quire.errors import PluginError
from quire.interfaces.kv_transfer import CrossGroupBlock, KVLookup, KVStoreScheduler

T = TypeVar("T")

logger = logging.getLogger(__name__)


class GuardedStore:
    """Scheduler side of a KV store; once switched off, it finds, loads and saves nothing.

    Args:
        store: Scheduler side of the store.
        name: Name of the store in the log.
        when_off: Function called once, when the store has been switched off.
    """

    def __init__(self, store: KVStoreScheduler, name: str, when_off: Callable[[], None]) -> None:
        self.name = name
        self.is_off = False
        self._store = store
        self._when_off = when_off

    def switch_off(self, why: str, error: Exception | None = None) -> None:
        """Stop calling the store, and log why, as a predicate to its name."""
        if self.is_off:
            return
        logger.error("%s %s and is switched off until a restart", self.name, why, exc_info=error)
        self.is_off = True
        self._when_off()

    def lookup(self, request_id: str, block_hashes: Sequence[bytes]) -> int | None:
        """Return the number of leading blocks that the store has; None: the lookup is pending."""
        nothing: int | None = 0
        return self._call(
            lambda: _num_offered(self._store.lookup(request_id, block_hashes), len(block_hashes)),
            default=nothing,
        )

    def start_load(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> None:
        """Start to load stored cross-group blocks."""
        self._call(lambda: self._store.start_load(transfer_id, cross_blocks), default=None)

    def start_save(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> int:
        """Start to save cross-group blocks, and return the number that will be written."""
        return self._call(
            lambda: _checked_count(
                self._store.start_save(transfer_id, cross_blocks), "start_save()"
            ),
            default=0,
        )

    def plan_step(self) -> bytes:
        """Return the message for the worker side."""
        return self._call(lambda: _checked_message(self._store.plan_step()), default=b"")

    def finish(self, transfer_id: int, *, has_failed: bool) -> None:
        """Notify the store that a transfer has ended."""
        self._call(lambda: self._store.finish(transfer_id, has_failed=has_failed), default=None)

    def reset(self) -> None:
        """Make the store drop all contents."""
        self._call(self._store.reset, default=None)

    def forget_request(self, request_id: str) -> None:
        """Notify the store that a request has finished."""
        self._call(lambda: self._store.forget_request(request_id), default=None)

    def shutdown(self) -> None:
        """Shut the store down, even if it is switched off."""
        try:
            self._store.shutdown()
        except Exception:  # the edge of a plugin
            logger.exception("%s could not be shut down", self.name)

    def _call(self, call: Callable[[], T], default: T) -> T:
        if self.is_off:
            return default
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the edge of a plugin; it is logged
            self.switch_off("failed", error)
            return default


def _num_offered(found: KVLookup, max_blocks: int) -> int | None:
    """Return the number of blocks that a lookup found; None: it is pending.

    Raises:
        PluginError: The store returned something other than a valid `KVLookup`.
    """
    if not isinstance(found, KVLookup):
        raise PluginError(f"lookup() returned a {type(found).__name__}, not a KVLookup")
    if found.is_pending:
        return None
    return min(_checked_count(found.num_blocks, "lookup()"), max_blocks)


def _checked_count(count: int, call: str) -> int:
    """Return a count that the store returned.

    Raises:
        PluginError: It is not an integer of at least 0.
    """
    if not isinstance(count, int) or count < 0:
        raise PluginError(f"{call} returned the count {count!r}; an integer >= 0 is required")
    return count


def _checked_message(message: bytes) -> bytes:
    """Return a message for the worker side.

    Raises:
        PluginError: It is not bytes.
    """
    if not isinstance(message, bytes):
        raise PluginError(f"plan_step() returned a {type(message).__name__}, not bytes")
    return message
