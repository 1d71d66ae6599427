"""Responses that are generated without a connection, until they end or are cancelled."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from quire.server.http.json_response import json_of
from quire.server.http.lifecycle import Lifecycle
from quire.server.routes.responses.response_run import ResponseRun
from quire.server.routes.responses.response_store import ResponseStore
from quire.server.routes.responses.stored_response import StoredResponse


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

    def start(self, run: ResponseRun, stored: StoredResponse, *, is_streamed: bool) -> None:
        """Generate a response, and store it from now on.

        Args:
            run: Response to generate.
            stored: What is stored of it.
            is_streamed: Whether its events are stored, too.

        Raises:
            HTTPError: It cannot be stored.
        """
        if is_streamed:
            stored.events = []
        self.store.begin(stored)
        self._runs[stored] = _BackgroundRun(run, stored, self.store, is_streamed)
        self._lifecycle.enter()
        self._runs[stored].task.add_done_callback(lambda _: self._leave(stored))

    async def cancel(self, stored: StoredResponse) -> None:
        """Abort the generation of a response, and wait for its end; one that has ended stays."""
        if (running := self._runs.get(stored)) is not None:
            await running.cancel()

    def events(self, stored: StoredResponse, first: int = 0) -> AsyncGenerator[bytes]:
        """Return the events of a response from a number on, also those to come."""
        running = self._runs.get(stored)
        return _past_events(stored, first) if running is None else running.events(first)

    def json_of(self, stored: StoredResponse) -> bytes:
        """Return the JSON of a response, as far as it is generated."""
        running = self._runs.get(stored)
        return stored.response if running is None else running.json()

    def _leave(self, stored: StoredResponse) -> None:
        del self._runs[stored]
        self._lifecycle.leave()


class _BackgroundRun:
    """One response in the background."""

    def __init__(
        self, run: ResponseRun, stored: StoredResponse, store: ResponseStore, is_streamed: bool
    ) -> None:
        self._run = run
        self._stored = stored
        self._store = store
        self._is_streamed = is_streamed
        self._is_over = False
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._generate())

    async def cancel(self) -> None:
        """Abort the request to the engine, and wait for the end."""
        self.task.cancel()
        await asyncio.wait([self.task])
        if not self._is_over:  # it was cancelled before it began
            self._end(self._run.cancel())

    def json(self) -> bytes:
        """Return the JSON of the response now."""
        return json_of(self._run.response)

    async def events(self, first: int) -> AsyncGenerator[bytes]:
        """Yield the events from a number on, also those to come."""
        number = first
        while True:
            news, is_over = self._news, self._is_over
            async for event in _past_events(self._stored, number):
                yield event
                number += 1
            if is_over:
                return
            await news.wait()

    async def _generate(self) -> None:
        try:
            with self._stored.account.running():
                final = await (self._streamed() if self._is_streamed else self._run.whole())
        except asyncio.CancelledError:
            self._end(self._run.cancel())
            raise
        except Exception as error:  # noqa: BLE001 - the edge: every failure becomes a response
            final = self._run.fail(error)
        finally:
            self._run.generation.release()
        self._end(final)

    async def _streamed(self) -> bytes:
        async with aclosing(self._run.events()) as events:
            async for event in events:
                self._store.add_event(self._stored, event)
                self._tell()
        return json_of(self._run.response)

    def _end(self, final: bytes) -> None:
        if not self._store.end(self._stored, final):
            self._stored.events = None
        self._is_over = True
        self._tell()

    def _tell(self) -> None:
        """Wake all readers of events."""
        self._news.set()
        self._news = asyncio.Event()


async def _past_events(stored: StoredResponse, first: int) -> AsyncGenerator[bytes]:
    number = first
    while number < len(stored.events or ()):
        yield (stored.events or [])[number]
        number += 1
