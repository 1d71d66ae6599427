"""Views of the engine, made once for all viewers together, and only while there is one.

A viewer asks for the current view and waits until it is out of date, so all viewers read the same
ones. The map of the KV blocks comes from the engine's process; a long step delays it, but not the
rest of the view, which then has the map before.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from quire.errors import QuireError
from quire.messages import BlockMap, ReadBlockMap
from quire.server.http.json_response import json_of
from quire.server.observe.readings import Readings
from quire.server.routes.live.engine_sample import (
    EngineRates,
    EngineSample,
    engine_view,
    map_view,
)
from quire.server.wire.http_errors import unavailable

INTERVAL_S = 0.5
MAP_WAIT_S = 0.3  # for the engine to return its map between two steps
MAX_RATE_S = 10.0  # rates over a longer time say nothing about now
MAX_CELLS = 2**15
MAX_VIEWERS = 64


class LiveFeed:
    """The current view of an engine; used in one event loop.

    Args:
        readings: Where numbers are read.
        clock: Monotonic clock, in seconds.
    """

    def __init__(self, readings: Readings, clock: Callable[[], float] = time.monotonic) -> None:
        self._readings = readings
        self._clock = clock
        self._num_viewers = 0
        self._view = b""
        self._stale_s = 0.0
        self._making: asyncio.Task[bytes] | None = None
        self._last: EngineSample | None = None
        self._asking: asyncio.Task[list[BlockMap]] | None = None
        self._maps: list[BlockMap] = []
        self._maps_s = 0.0

    async def current(self) -> bytes:
        """Return the view as JSON, not older than `INTERVAL_S`."""
        if self._clock() < self._stale_s:
            return self._view
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)

    async def follow(self) -> AsyncGenerator[bytes]:
        """Yield a view at once, and then each new one, until the server drains or the engine dies.

        Raises:
            HTTPError: There are too many viewers.
        """
        if self._num_viewers >= MAX_VIEWERS:
            raise unavailable(f"{MAX_VIEWERS} clients follow the engine already; try again later")
        self._num_viewers += 1
        try:
            while not self._is_ending:
                yield await self.current()
                await asyncio.sleep(max(0.01, self._stale_s - self._clock()))
            yield await self._make()
        finally:
            self._num_viewers -= 1

    @property
    def _is_ending(self) -> bool:
        return self._readings.engine_state in ("draining", "dead")

    async def _make(self) -> bytes:
        await self._ask_for_maps()
        now = EngineSample.of(self._readings, self._clock())
        rates = EngineRates()
        if self._last is not None and 0 < now.at_s - self._last.at_s <= MAX_RATE_S:
            rates = EngineRates.between(self._last, now)
        self._last = now
        age_s = now.at_s - self._maps_s
        maps = {each.replica: map_view(each, age_s) for each in self._maps}
        self._view = json_of(engine_view(self._readings, rates, maps))
        self._stale_s = self._clock() + INTERVAL_S
        return self._view

    async def _ask_for_maps(self) -> None:
        """Take the maps if the engine returns them soon; else the next view may have them."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait([self._asking], timeout=MAP_WAIT_S)
        if done:
            self._maps, self._maps_s = self._asking.result(), self._clock()
            self._asking = None

    async def _ask(self) -> list[BlockMap]:
        try:
            found: list[BlockMap] = await self._readings.frontend.controls.call(
                ReadBlockMap(MAX_CELLS)
            )
        except QuireError:  # the engine is dead, which the state of the view says
            return []
        return found
