"""Feed of the changes of the prefix cache, for readers on event loops.

The engine's thread never waits for a reader. A reader that falls behind by more than `MAX_BEHIND`
batches loses the oldest; it notices that by their numbers, and goes on from a snapshot.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from quire.cached_blocks import BatchOrder
from quire.errors import EngineDeadError, RefusedError
from quire.frontend.dispatch.control_calls import ControlCalls
from quire.messages import KVEventBatch, ReadKVSnapshot

MAX_BEHIND = 1000  # batches, each of a step


class KVEventFeed:
    """Readers of the changes of the prefix cache.

    Args:
        controls: Commands for the engine, to take snapshots.
    """

    def __init__(self, controls: ControlCalls) -> None:
        self._controls = controls
        self._readers: set[_Reader] = set()
        self._death: EngineDeadError | None = None
        self._lock = threading.Lock()

    def publish(self, batches: Sequence[KVEventBatch]) -> None:
        """Pass batches on to all readers; in the engine's thread."""
        with self._lock:
            readers = list(self._readers)
        for reader in readers:
            reader.waiting.extend(batches)
            reader.wake()

    def fail(self, death: EngineDeadError) -> None:
        """End all readers with an error, once they have read what there is."""
        with self._lock:
            self._death = death
            readers = list(self._readers)
        for reader in readers:
            reader.wake()

    async def read(self) -> AsyncGenerator[KVEventBatch]:
        """Yield a snapshot of each replica, then batches as they come.

        After batches were lost there are snapshots again, so that blocks kept by what this yields
        are those in the caches.

        Raises:
            RefusedError: The engine does not report its changes.
            EngineDeadError: The engine stopped.
        """
        reader, order = _Reader(), BatchOrder()
        with self._lock:
            self._readers.add(reader)
        try:
            for snapshot in await self._snapshots():
                order.take(snapshot)
                yield snapshot
            while True:
                for batch in await self._next(reader, order):
                    yield batch
        finally:
            with self._lock:
                self._readers.discard(reader)

    async def _next(self, reader: "_Reader", order: BatchOrder) -> Sequence[KVEventBatch]:
        """Wait for batches; return the next one, or snapshots if it does not follow the last."""
        while not reader.waiting:
            if self._death is not None:
                raise EngineDeadError(str(self._death)) from self._death
            await reader.wait()
        batch = reader.waiting.popleft()
        how = order.take(batch)
        if how == "gap":
            found = await self._snapshots()
            return [snapshot for snapshot in found if order.take(snapshot) != "old"]
        return [] if how == "old" else [batch]

    async def _snapshots(self) -> list[KVEventBatch]:
        """Return the contents of all caches.

        Raises:
            RefusedError: The engine does not report its changes.
        """
        snapshots: list[KVEventBatch] = await self._controls.call(ReadKVSnapshot())
        if not snapshots:
            raise RefusedError(
                "the engine does not report changes of its prefix cache; start it with kv_events"
            )
        return snapshots


class _Reader:
    """Batches that a reader has not read yet, at most `MAX_BEHIND`; made on its event loop."""

    def __init__(self) -> None:
        self.waiting: deque[KVEventBatch] = deque(maxlen=MAX_BEHIND)
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Make `wait` return; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits
            self._loop.call_soon_threadsafe(self._news.set)

    async def wait(self) -> None:
        """Wait for the next call of `wake`."""
        await self._news.wait()
        self._news.clear()
