"""The feed of the engine's views ends with the engine and with the server, and has a limit."""

import asyncio
import json

import pytest

from quire.server.http.lifecycle import Lifecycle
from quire.server.observe.readings import Readings
from quire.server.routes.live import live_feed
from quire.server.routes.live.live_feed import MAX_VIEWERS, LiveFeed
from quire.server.wire.http_errors import HTTPError


def test_a_drain_ends_the_stream(frontend):
    async def drained():
        lifecycle = Lifecycle()
        views = LiveFeed(Readings(frontend, lifecycle)).follow()
        first = await anext(views)
        lifecycle.drain()
        return [json.loads(view)["state"] for view in [first, *[view async for view in views]]]

    assert asyncio.run(asyncio.wait_for(drained(), 20)) == ["ready", "draining"]


def test_there_is_a_limit_of_viewers(frontend):
    async def crowded():
        feed = LiveFeed(Readings(frontend, Lifecycle()))
        viewers = [feed.follow() for _ in range(MAX_VIEWERS)]
        views = [await anext(viewer) for viewer in viewers]
        assert len(set(views)) <= 2, "they share views"
        with pytest.raises(HTTPError) as raised:
            await anext(feed.follow())
        await viewers.pop().aclose()
        assert await anext(feed.follow())
        for viewer in viewers:
            await viewer.aclose()
        return raised.value

    error = asyncio.run(asyncio.wait_for(crowded(), 20))
    assert (error.status, "retry-after" in error.headers) == (503, True)


def test_a_view_is_made_again_when_it_is_old(frontend):
    async def aged():
        now_s = [100.0]
        feed = LiveFeed(Readings(frontend, Lifecycle()), lambda: now_s[0])
        first = await feed.current()
        assert await feed.current() is first
        now_s[0] += live_feed.INTERVAL_S
        second = await feed.current()
        now_s[0] += live_feed.MAX_RATE_S + 1
        third = await feed.current()
        return [json.loads(view)["interval_s"] for view in (first, second, third)]

    assert asyncio.run(asyncio.wait_for(aged(), 20)) == [None, live_feed.INTERVAL_S, None]
