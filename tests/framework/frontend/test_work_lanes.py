"""Long work keeps short work waiting for nothing, and is not begun for callers that have left."""

import asyncio
import threading

import pytest

from quire.frontend.work_lanes import INLINE_SIZE, LONG_SIZE, MIDDLE_THREADS, WorkLanes


@pytest.fixture
def lanes():
    lanes = WorkLanes()
    yield lanes
    lanes.close()


def thread_name():
    return threading.current_thread().name


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (0, "MainThread"),
        (INLINE_SIZE, "MainThread"),
        (INLINE_SIZE + 1, "quire-prompts_0"),
        (LONG_SIZE, "quire-prompts_0"),
        (LONG_SIZE + 1, "quire-long-prompts_0"),
    ],
)
def test_work_is_done_in_the_lane_of_its_size(lanes, size, name):
    assert asyncio.run(lanes.run(size, thread_name)) == name


@pytest.mark.parametrize(("size", "num_at_once"), [(LONG_SIZE, MIDDLE_THREADS), (LONG_SIZE + 1, 1)])
def test_each_lane_does_so_much_at_once_and_the_other_goes_on(lanes, size, num_at_once):
    let_go, begun = threading.Event(), []

    def work():
        begun.append(None)
        assert let_go.wait(30)

    async def check():
        waiting = [asyncio.create_task(lanes.run(size, work)) for _ in range(5)]
        other = LONG_SIZE + 1 if size == LONG_SIZE else LONG_SIZE
        assert await lanes.run(other, thread_name) != "MainThread"
        assert await lanes.run(1, thread_name) == "MainThread"
        while len(begun) < num_at_once:
            await asyncio.sleep(0.001)
        assert len(begun) == num_at_once
        let_go.set()
        await asyncio.gather(*waiting)

    asyncio.run(check())
    assert len(begun) == 5


def test_what_waits_is_not_begun_if_its_caller_is_cancelled(lanes):
    let_go, begun = threading.Event(), []

    async def check():
        first = asyncio.create_task(lanes.run(LONG_SIZE + 1, lambda: let_go.wait(30)))
        left = asyncio.create_task(lanes.run(LONG_SIZE + 1, lambda: begun.append("left")))
        await asyncio.sleep(0)
        last = asyncio.create_task(lanes.run(LONG_SIZE + 1, lambda: begun.append("last")))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        let_go.set()
        await asyncio.gather(first, last)

    asyncio.run(check())
    assert begun == ["last"]


def test_an_error_is_that_of_the_work(lanes):
    with pytest.raises(ZeroDivisionError):
        asyncio.run(lanes.run(LONG_SIZE, lambda: 1 // 0))


def test_closed_lanes_do_nothing_that_waits():
    lanes, let_go, begun = WorkLanes(), threading.Event(), []

    async def check():
        first = asyncio.create_task(lanes.run(LONG_SIZE + 1, lambda: let_go.wait(30)))
        second = asyncio.create_task(lanes.run(LONG_SIZE + 1, lambda: begun.append(None)))
        await asyncio.sleep(0)
        lanes.close()
        let_go.set()
        await asyncio.gather(first, second, return_exceptions=True)
        assert second.cancelled()

    asyncio.run(check())
    assert not begun
