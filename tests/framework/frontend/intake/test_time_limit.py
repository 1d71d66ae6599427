"""A time limit counts from the arrival: it cancels work, and none begins or ends after it."""

import asyncio
import math
import threading
import time

import pytest

from quire.errors import InvalidRequestError, RequestTimeoutError
from quire.frontend.intake.time_limit import TimeLimit


def arrived(seconds_ago, timeout_s=None, max_timeout_s=None):
    return TimeLimit(time.monotonic() - seconds_ago, timeout_s, max_timeout_s)


async def held(limit, work):
    async with limit.hold():
        return await work


def test_without_a_limit_time_is_left_for_ever():
    limit = arrived(1e6)
    assert limit.left_s == math.inf
    limit.check()
    assert asyncio.run(held(limit, asyncio.sleep(0, "done"))) == "done"


@pytest.mark.parametrize(
    ("own_s", "max_s", "left_s", "named"),
    [
        (5.0, None, 3.0, "its timeout_s is 5 s"),
        (None, 4.0, 2.0, "the request_timeout_s here is 4 s"),
        (9.0, 4.0, 2.0, "the request_timeout_s here is 4 s"),
        (4.0, 4.0, 2.0, "its timeout_s is 4 s"),
    ],
)
def test_the_shorter_limit_counts_from_the_arrival(own_s, max_s, left_s, named):
    assert arrived(2.0, own_s, max_s).left_s == pytest.approx(left_s, abs=0.5)
    with pytest.raises(RequestTimeoutError, match=named):
        arrived(20.0, own_s, max_s).check()


def test_work_does_not_begin_after_the_limit():
    began = []

    async def work():
        began.append(True)

    coroutine = work()
    with pytest.raises(RequestTimeoutError, match=r"not queued 7 s after its arrival"):
        asyncio.run(held(arrived(7.0, 2.0), coroutine))
    coroutine.close()
    assert not began


def test_work_that_waits_is_cancelled_at_the_limit():
    with pytest.raises(RequestTimeoutError):
        asyncio.run(asyncio.wait_for(held(arrived(2.0, 2.05), asyncio.Event().wait()), 20))


def test_the_error_names_work_that_is_not_the_queue():
    async def wait(limit):
        async with limit.hold("the calls of tools"):
            await asyncio.Event().wait()

    for limit in (arrived(2.0, 2.05), arrived(7.0, 2.0)):
        with pytest.raises(RequestTimeoutError, match="the calls of tools had not ended") as caught:
            asyncio.run(asyncio.wait_for(wait(limit), 20))
        assert "queue" not in str(caught.value)


def test_what_holds_the_event_loop_beyond_the_limit_was_too_slow():
    async def block():
        threading.Event().wait(0.1)

    with pytest.raises(RequestTimeoutError):
        asyncio.run(held(arrived(2.0, 2.05), block()))


def test_another_timeout_is_not_taken_for_the_limit():
    async def fail():
        raise TimeoutError("of a disk")

    with pytest.raises(TimeoutError, match="of a disk"):
        asyncio.run(held(arrived(0.0, 60.0), fail()))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), 2e9, True, "1"])
def test_a_timeout_must_be_a_positive_number(timeout_s):
    with pytest.raises(InvalidRequestError) as caught:
        TimeLimit(0.0, timeout_s)
    assert caught.value.param == "timeout_s"
