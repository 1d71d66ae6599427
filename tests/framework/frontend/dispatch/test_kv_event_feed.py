"""Readers of the feed know what is cached, also those that fall behind; none delays the engine."""

import asyncio

import pytest
from engine_parts import make_core, make_message, make_plan

from quire.cached_blocks import CachedBlocks
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.errors import EngineDeadError
from quire.frontend.dispatch import kv_event_feed
from quire.frontend.dispatch.dispatcher import Dispatch
from quire.messages import ReadKVSnapshot

WAIT_S = 20.0


def run(test):
    async def main():
        kv = KVCacheManager(make_plan(20), reports_events=True)
        dispatch = Dispatch(make_core(kv=kv)[0])
        try:
            await asyncio.wait_for(test(dispatch), 2 * WAIT_S)
        finally:
            await asyncio.to_thread(dispatch.thread.stop)

    asyncio.run(main())


async def compute(dispatch, count, first=0):
    """Compute prompts that share nothing, each in steps of its own."""
    for number in range(first, first + count):
        message = make_message(f"{number}", [100 + number] * 9, max_tokens=1)
        num_steps = dispatch.done.num_steps
        dispatch.thread.post(lambda core, message=message: core.add(message))
        while dispatch.done.num_steps == num_steps:
            await asyncio.sleep(0.001)


async def snapshot_of(dispatch):
    blocks = CachedBlocks()
    (snapshot,) = await dispatch.controls.call(ReadKVSnapshot())
    assert blocks.apply(snapshot)
    return blocks.of()


async def read_until(feed, blocks, expected):
    """Return the batches until the blocks are as expected."""
    batches = []
    while blocks.of() != expected:
        batches.append(await asyncio.wait_for(anext(feed), WAIT_S))
        assert blocks.apply(batches[-1])
    return batches


def test_a_reader_that_keeps_up_gets_each_batch_once():
    async def test(dispatch):
        feed, blocks = dispatch.kv_events.read(), CachedBlocks()
        assert blocks.apply(await anext(feed))
        await compute(dispatch, 8)
        batches = await read_until(feed, blocks, await snapshot_of(dispatch))
        assert not any(batch.is_snapshot for batch in batches)
        assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))

    run(test)


def test_a_reader_that_falls_behind_goes_on_from_a_snapshot(monkeypatch):
    monkeypatch.setattr(kv_event_feed, "MAX_BEHIND", 2)

    async def test(dispatch):
        feed, blocks = dispatch.kv_events.read(), CachedBlocks()
        assert blocks.apply(await anext(feed))
        await compute(dispatch, 8)
        batches = await read_until(feed, blocks, await snapshot_of(dispatch))
        assert [batch.is_snapshot for batch in batches] == [True]
        await compute(dispatch, 1, first=50)
        batches = await read_until(feed, blocks, await snapshot_of(dispatch))
        assert not any(batch.is_snapshot for batch in batches)

    run(test)


def test_readers_have_each_their_own_place():
    async def test(dispatch):
        feeds = [dispatch.kv_events.read() for _ in range(2)]
        known = [CachedBlocks() for _ in feeds]
        for feed, blocks in zip(feeds, known, strict=True):
            blocks.apply(await anext(feed))
        await compute(dispatch, 3)
        expected = await snapshot_of(dispatch)
        for feed, blocks in zip(feeds, known, strict=True):
            await read_until(feed, blocks, expected)

    run(test)


def test_a_reader_that_leaves_is_forgotten():
    async def test(dispatch):
        feed = dispatch.kv_events.read()
        await anext(feed)
        assert len(dispatch.kv_events._readers) == 1
        await feed.aclose()
        assert not dispatch.kv_events._readers

    run(test)


def test_what_a_dead_engine_has_said_is_read_before_its_error():
    async def test(dispatch):
        feed, blocks = dispatch.kv_events.read(), CachedBlocks()
        blocks.apply(await anext(feed))
        await compute(dispatch, 3)
        expected = await snapshot_of(dispatch)
        await asyncio.to_thread(dispatch.thread.stop)
        await read_until(feed, blocks, expected)
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(anext(feed), WAIT_S)

    run(test)
