"""Streams are read as they come, and none is left running."""

import asyncio
from contextlib import aclosing

import pytest

from quire.server.http.merged_streams import merged


async def items(*values, error=None, wait=False):
    for value in values:
        await asyncio.sleep(0)
        yield value
    if wait:
        await asyncio.Event().wait()
    if error is not None:
        raise error


def test_streams_are_merged_as_they_come():
    async def main():
        pairs = [pair async for pair in merged([items(1, 2), items(), items(3)])]
        assert sorted(pairs) == [(0, 1), (0, 2), (2, 3)]
        assert [pair async for pair in merged([items(1, 2)])] == [(0, 1), (0, 2)]

    asyncio.run(main())


@pytest.mark.parametrize("num_others", [0, 2])
def test_an_error_in_one_stream_is_raised_behind_its_items_and_ends_the_others(num_others):
    async def main():
        streams = [items(1, error=KeyError("x")), *(items(wait=True) for _ in range(num_others))]
        pairs = merged(streams)
        assert await anext(pairs) == (0, 1)
        with pytest.raises(KeyError):
            await anext(pairs)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_reader_that_leaves_leaves_nothing_running():
    async def main():
        async with aclosing(merged([items(1, wait=True), items(2, wait=True)])) as pairs:
            await anext(pairs)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_slow_reader_holds_the_streams_up():
    taken = []

    async def endless():
        for i in range(1000):
            taken.append(i)
            yield i

    async def main():
        async with aclosing(merged([endless(), endless()])) as pairs:
            await anext(pairs)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(taken) < 20

    asyncio.run(main())
