"""Calls of a KV store beside the scheduler: one that raises or answers nonsense is switched off."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from quire.errors import PluginError
from quire.interfaces.kv_transfer import CrossGroupBlock, KVLookup, KVStoreScheduler

T = TypeVar("T")

logger = logging.getLogger(__name__)


class GuardedStore:
    """The half, as long as it behaves; after that a store that has nothing and takes nothing.

    Args:
        store: The half.
        name: What the log calls it.
        when_off: Called once, when it has been switched off.
    """

    def __init__(self, store: KVStoreScheduler, name: str, when_off: Callable[[], None]) -> None:
        self.name = name
        self.is_off = False
        self._store = store
        self._when_off = when_off

    def switch_off(self) -> None:
        """Ask it nothing any more."""
        if not self.is_off:
            self.is_off = True
            self._when_off()

    def lookup(self, request_id: str, block_hashes: Sequence[bytes]) -> int | None:
        """Return how many of these blocks, from the first on, it has; None: it will say later."""
        nothing: int | None = 0
        return self._ask(
            lambda: _num_offered(self._store.lookup(request_id, block_hashes), len(block_hashes)),
            otherwise=nothing,
        )

    def start_load(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> None:
        """Have stored columns brought."""
        self._ask(lambda: self._store.start_load(transfer_id, cross_blocks), otherwise=None)

    def start_save(self, transfer_id: int, cross_blocks: Sequence[CrossGroupBlock]) -> int:
        """Have columns kept; returns how many will be."""
        return self._ask(
            lambda: _counted(self._store.start_save(transfer_id, cross_blocks), "start_save()"),
            otherwise=0,
        )

    def plan_step(self) -> bytes:
        """Return the message for the worker's half."""
        return self._ask(lambda: _message(self._store.plan_step()), otherwise=b"")

    def finish(self, transfer_id: int, *, has_failed: bool) -> None:
        """Tell it that a transfer has ended."""
        self._ask(lambda: self._store.finish(transfer_id, has_failed=has_failed), otherwise=None)

    def reset(self) -> None:
        """Make it forget every content."""
        self._ask(self._store.reset, otherwise=None)

    def forget_request(self, request_id: str) -> None:
        """Tell it that a request is over."""
        self._ask(lambda: self._store.forget_request(request_id), otherwise=None)

    def shutdown(self) -> None:
        """Let it give everything back, whatever it did before."""
        try:
            self._store.shutdown()
        except Exception:  # the edge of a plugin
            logger.exception("%s could not be shut down", self.name)

    def _ask(self, call: Callable[[], T], otherwise: T) -> T:
        if self.is_off:
            return otherwise
        try:
            return call()
        except Exception:  # the edge of a plugin
            logger.exception("%s failed and is switched off", self.name)
            self.switch_off()
            return otherwise


def _num_offered(answer: KVLookup, most: int) -> int | None:
    """Return how many blocks an answer offers; None: it will come later.

    Raises:
        PluginError: It is no answer.
    """
    if not isinstance(answer, KVLookup):
        raise PluginError(f"lookup() returned a {type(answer).__name__}, no KVLookup")
    if answer.is_pending:
        return None
    return min(_counted(answer.num_blocks, "lookup()"), most)


def _counted(count: int, call: str) -> int:
    """Return what a store has counted.

    Raises:
        PluginError: It is no count.
    """
    if not isinstance(count, int) or count < 0:
        raise PluginError(f"{call} counted {count!r}; a number from 0 on is needed")
    return count


def _message(message: bytes) -> bytes:
    """Return a message for the other half.

    Raises:
        PluginError: It is none.
    """
    if not isinstance(message, bytes):
        raise PluginError(f"plan_step() returned a {type(message).__name__}, no bytes")
    return message
