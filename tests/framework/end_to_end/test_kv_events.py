"""The feed of the prefix cache's changes, of each kind of engine."""

import asyncio
import os
import signal

import pytest

from quire import AsyncEngine, CachedBlocks, SamplingParams
from quire.engine.kv_cache.block_hash import BlockHasher
from quire.errors import EngineDeadError, RefusedError, SettingsError
from quire.messages import BlocksRemoved, BlocksStored, CacheCleared

KINDS = {
    "in_process": {"engine_process": False},
    "engine_process": {"engine_process": True},
    "replicas": {"data_parallel_size": 2},
}
OPTIONS = {"device": "cpu", "threads": 1, "num_kv_blocks": 24, "block_size": 16}
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
WAIT_S = 60.0


def run(test, **options):
    async def main():
        engine = AsyncEngine("demo", **{**OPTIONS, "kv_events": True, **options})
        try:
            await asyncio.wait_for(test(engine), 2 * WAIT_S)
        finally:
            await engine.shutdown()

    asyncio.run(main())


async def complete(engine, token_ids, **options):
    prompt = {"prompt_token_ids": token_ids, **options}
    return [delta async for delta in engine.generate(prompt, GREEDY)]


async def read_until(feed, condition, blocks):
    """Apply batches until a condition holds; return their events."""
    events = []
    while not condition():
        batch = await asyncio.wait_for(anext(feed), WAIT_S)
        assert blocks.apply(batch)
        events += batch.events
    return events


def num_known(blocks):
    return sum(len(blocks.of(replica)) for replica in range(2))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cached_is_known_of_each_kind_of_engine(kind):
    prompt = list(range(3, 43))  # two blocks, and the tokens of a third

    async def test(engine):
        feed, blocks = engine.kv_events(), CachedBlocks()
        await read_until(feed, lambda: blocks._order._last, blocks)
        assert num_known(blocks) == 0
        await complete(engine, prompt, cache_salt="alice")
        events = await read_until(feed, lambda: num_known(blocks) >= 2, blocks)
        (event,) = events
        assert isinstance(event, BlocksStored)
        assert (event.token_ids, event.position) == (prompt[:32], 0)
        assert (event.adapter, event.cache_salt) == (None, "alice")
        hashes = [event.parent]
        BlockHasher(16, b"").extend(hashes, prompt, 2)
        assert hashes[1:] == event.hashes
        await engine.reset_prefix_cache()  # of an idle engine
        events = await read_until(feed, lambda: num_known(blocks) == 0, blocks)
        assert CacheCleared() in events
        await feed.aclose()

    run(test, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_late_reader_and_one_from_the_start_know_the_same(kind):
    async def test(engine):
        early, late = CachedBlocks(), CachedBlocks()
        feed = engine.kv_events()
        early.apply(await anext(feed))
        for first in range(30):
            await complete(engine, [first + 3] * 50)
        again = engine.kv_events()
        snapshots = [await anext(again) for _ in range(2 if kind == "replicas" else 1)]
        assert all(snapshot.is_snapshot and late.apply(snapshot) for snapshot in snapshots)
        known = {replica: late.of(replica) for replica in range(2)}
        assert all(len(blocks) > 10 for blocks in known.values() if blocks)
        is_same = lambda: known == {replica: early.of(replica) for replica in range(2)}  # noqa: E731
        events = await read_until(feed, is_same, early)
        assert any(isinstance(event, BlocksRemoved) for event in events)

    run(test, **KINDS[kind])


def test_the_death_of_a_replica_clears_what_is_known_of_it():
    async def test(engine):
        feed, blocks = engine.kv_events(), CachedBlocks()
        await complete(engine, list(range(3, 60)))
        await read_until(feed, lambda: num_known(blocks), blocks)
        (index,) = (replica for replica in range(2) if blocks.of(replica))
        os.kill(engine.frontend.thread._core.pids[index], signal.SIGKILL)
        await read_until(feed, lambda: not num_known(blocks), blocks)
        await complete(engine, list(range(3, 60)))
        await read_until(feed, lambda: num_known(blocks), blocks)

    run(test, data_parallel_size=2)


def test_readers_end_with_the_engine():
    async def test(engine):
        feed = engine.kv_events()
        assert (await anext(feed)).is_snapshot
        waiting = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0)
        await engine.shutdown()
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(waiting, WAIT_S)

    run(test)


def test_an_engine_that_does_not_report_says_so():
    async def test(engine):
        with pytest.raises(RefusedError, match="start it with kv_events"):
            await anext(engine.kv_events())
        assert engine.frontend.dispatch.stats.num_used_blocks == 0

    run(test, kv_events=False)


def test_events_without_a_prefix_cache_are_refused():
    with pytest.raises(SettingsError, match="kv_events needs enable_prefix_caching"):
        AsyncEngine("demo", kv_events=True, enable_prefix_caching=False)
