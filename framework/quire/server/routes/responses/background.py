"""Responses that are generated without a connection, until they end or are cancelled."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial

from quire.server.http.json_response import in_thread_if, json_of
from quire.server.http.lifecycle import Lifecycle
from quire.server.routes.responses.response_run import ResponseRun
from quire.server.routes.responses.store.event_log import EventLog
from quire.server.routes.responses.store.response_store import ResponseStore
from quire.server.routes.responses.store.stored_response import StoredResponse
from quire.server.wire.bodies import LARGE_BYTES
from quire.server.wire.http_errors import HTTPError


class BackgroundRuns:
    """All responses that are generated in the background; used in one event loop.

    Args:
        store: Store that has them.
        lifecycle: Lifecycle, which waits for them when the server drains.
    """

    def __init__(self, store: ResponseStore, lifecycle: Lifecycle) -> None:
        self.store = store
        self._lifecycle = lifecycle
        self._runs: dict[StoredResponse, _BackgroundRun] = {}

    def start(
        self, run: ResponseRun, stored: StoredResponse, *, is_streamed: bool
    ) -> asyncio.Task[None]:
        """Generate a response, and store it from now on; return the task that does it.

        Args:
            run: Response to generate.
            stored: What is stored of it.
            is_streamed: Whether its events are stored, too.

        Raises:
            HTTPError: It cannot be stored.
        """
        if is_streamed:
            stored.events = EventLog()
        self.store.begin(stored)
        self._runs[stored] = _BackgroundRun(run, stored, self.store, is_streamed)
        self._lifecycle.enter()
        task = self._runs[stored].task
        task.add_done_callback(lambda _: self._leave(stored))
        return task

    async def cancel(self, stored: StoredResponse) -> None:
        """Abort the generation of a response, and wait for its end; one that has ended stays."""
        if (running := self._runs.get(stored)) is not None:
            await running.cancel()

    async def events(
        self, stored: StoredResponse, log: EventLog, first: int = 0
    ) -> AsyncGenerator[bytes]:
        """Yield the events of a response from a number on, also those to come.

        Args:
            stored: The response.
            log: Its events, which a reader has even if they are stored no longer.
            first: Number of the first event.
        """
        number = first
        while True:
            running = self._runs.get(stored)
            news = None if running is None or running.is_over else running.news
            while number < len(log):
                encode = partial(log.encoded, number, stored.response)
                is_large = log.is_snapshot(number) and len(stored.response) > LARGE_BYTES
                yield await in_thread_if(is_large, encode)
                number += 1
            if news is None:
                return
            await news.wait()

    def json_of(self, stored: StoredResponse) -> bytes:
        """Return the JSON of a response, as far as it is generated."""
        running = self._runs.get(stored)
        return stored.response if running is None else running.json()

    def _leave(self, stored: StoredResponse) -> None:
        del self._runs[stored]
        self._lifecycle.leave()


class _BackgroundRun:
    """One response in the background.

    Attributes:
        is_over: Whether the response has ended.
        news: Event that is set with the next event of the stream, and at the end.
    """

    def __init__(
        self, run: ResponseRun, stored: StoredResponse, store: ResponseStore, is_streamed: bool
    ) -> None:
        self._run = run
        self._stored = stored
        self._store = store
        self._is_streamed = is_streamed
        self.is_over = False
        self.news = asyncio.Event()
        self.task = asyncio.create_task(self._generate())

    async def cancel(self) -> None:
        """Abort the request to the engine, and wait for the end."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self.is_over:  # it was cancelled before it began
            self._end(self._run.cancel())

    def json(self) -> bytes:
        """Return the JSON of the response now."""
        return json_of(self._run.response)

    async def _generate(self) -> None:
        try:
            with self._stored.account.running():
                final = await (self._streamed() if self._is_streamed else self._run.whole())
        except asyncio.CancelledError:
            self._end(self._run.cancel())
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes a response
            final = await self._run.fail(error)
        finally:
            self._run.release()
        self._end(final)

    async def _streamed(self) -> bytes:
        async with aclosing(self._run.events()) as events:
            async for event in events:
                self._store.add_event(self._stored, event)
                self._tell()
        return await self._run.ended()

    def _end(self, final: bytes) -> None:
        run, stored, store = self._run, self._stored, self._store
        self._close_items()
        number = 0 if stored.events is None else len(stored.events)  # one may have had no room
        if not store.end(stored, final, run.last_event(number)):
            final = run.fail_without_output(store.no_room())
            store.end(stored, final, run.last_event(number))
        self.is_over = True
        self._tell()

    def _close_items(self) -> None:
        """Add the events of items that were open, unless one before them had no room."""
        log = self._stored.events
        if log is None or self._run.num_events != len(log):
            return
        with suppress(HTTPError):  # the last event says that there is no room
            for event in self._run.closing_events():
                self._store.add_event(self._stored, event)

    def _tell(self) -> None:
        """Wake all readers of events."""
        self.news.set()
        self.news = asyncio.Event()
