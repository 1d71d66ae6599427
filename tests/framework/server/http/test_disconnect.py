"""Work runs as long as its client is connected, and nothing is left of it afterwards."""

import asyncio

import pytest
from asgi_parts import Wire
from starlette.requests import ClientDisconnect

from quire.server.http.disconnect import run_until, run_while_connected


async def for_ever():
    await asyncio.Event().wait()


def test_a_disconnect_ends_the_work_before_it_is_raised():
    ended = []

    async def work():
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)  # as an abort that takes its time
            ended.append(True)

    async def main():
        wire = Wire()
        asyncio.get_running_loop().call_later(0.01, wire.gone.set)
        with pytest.raises(ClientDisconnect):
            await asyncio.wait_for(run_while_connected(work(), wire.receive, {}), 5)
        assert ended == [True]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_message_that_is_no_disconnect_ends_nothing():
    async def work():
        await asyncio.sleep(0.01)
        return 5

    async def main():
        assert await run_while_connected(work(), Wire(b"", b"", b"").receive, {}) == 5
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_an_error_of_the_watcher_is_no_disconnect():
    async def broken():
        raise OSError("the socket broke")

    async def main():
        with pytest.raises(OSError, match="the socket broke"):
            await asyncio.wait_for(run_until(for_ever(), broken()), 5)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_an_error_of_the_work_is_the_works():
    async def broken():
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(run_until(broken(), for_ever()))


def test_work_that_ends_together_with_the_connection_has_its_result():
    async def work():
        return 5

    async def gone():
        pass

    assert asyncio.run(run_until(work(), gone())) == 5


def test_cancelling_it_cancels_both():
    ended = []

    async def noted(name):
        try:
            await for_ever()
        finally:
            ended.append(name)

    async def main():
        both = asyncio.create_task(run_until(noted("work"), noted("end")))
        await asyncio.sleep(0.01)
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both
        assert sorted(ended) == ["end", "work"]

    asyncio.run(main())
