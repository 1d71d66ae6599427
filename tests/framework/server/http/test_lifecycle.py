"""The last request that leaves lets a server that drains go."""

import asyncio

import pytest

from quire.server.http.lifecycle import Lifecycle


async def is_idle(lifecycle):
    waiting = asyncio.create_task(lifecycle.wait_until_idle())
    await asyncio.sleep(0)
    is_over = waiting.done()
    waiting.cancel()
    return is_over


def test_nothing_in_flight_is_idle():
    assert asyncio.run(is_idle(Lifecycle()))


@pytest.mark.parametrize("num", [1, 2, 5])
def test_it_is_idle_again_when_the_last_one_leaves(num):
    async def main():
        lifecycle = Lifecycle()
        for _ in range(num):
            lifecycle.enter()
        for left in range(num, 0, -1):
            assert lifecycle.num_in_flight == left
            assert not await is_idle(lifecycle)
            lifecycle.leave()
        assert lifecycle.num_in_flight == 0
        assert await is_idle(lifecycle)
        lifecycle.enter()
        assert not await is_idle(lifecycle)

    asyncio.run(main())


def test_a_waiter_is_woken_by_the_last_request():
    async def main():
        lifecycle = Lifecycle()
        lifecycle.enter()
        waiting = asyncio.create_task(lifecycle.wait_until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        lifecycle.leave()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(main())


def test_draining_changes_no_count():
    lifecycle = Lifecycle()
    assert not lifecycle.is_draining
    lifecycle.enter()
    lifecycle.drain()
    assert (lifecycle.is_draining, lifecycle.num_in_flight) == (True, 1)
