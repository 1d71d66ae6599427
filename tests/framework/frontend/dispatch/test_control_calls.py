"""A pending control ends with its result, its error or the engine's death."""

import asyncio

import pytest
from scripted_core import ScriptedCore, echo

from quire.errors import AdapterError, EngineDeadError
from quire.frontend.dispatch.control_calls import ControlCalls
from quire.messages import ResetPrefixCache

COMMAND = ResetPrefixCache()


class Thread:
    """An engine's thread as controls see it: commands are run when the test says so."""

    def __init__(self):
        self.death = None
        self.posted = []

    def post(self, command):
        if self.death is not None:
            raise self.death
        self.posted.append(command)


class Case:
    def __init__(self):
        self.thread = Thread()
        self.calls = ControlCalls(self.thread)
        self.core = ScriptedCore(echo)

    def call(self):
        return asyncio.create_task(self.calls.call(COMMAND))

    def run(self):
        for command in self.thread.posted:
            command(self.core)
        self.thread.posted.clear()


def run(test):
    async def main():
        errors = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: errors.append(said))
        case = Case()
        await asyncio.wait_for(test(case), 10)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not case.calls._waiting
        assert errors == []

    asyncio.run(main())


async def run_event_loop():
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_control_waits_for_its_turn_and_returns_its_result():
    async def test(case):
        case.core.control = lambda command: (command, 5)
        calls = [case.call() for _ in range(2)]
        await run_event_loop()
        assert not any(call.done() for call in calls)
        case.run()
        assert await asyncio.gather(*calls) == [(COMMAND, 5)] * 2

    run(test)


def test_an_error_of_ours_is_raised_where_it_waits():
    async def test(case):
        case.core.control_error = AdapterError("no such files")
        call = case.call()
        await run_event_loop()
        case.run()
        with pytest.raises(AdapterError, match="no such files"):
            await call

    run(test)


@pytest.mark.parametrize("error", [RuntimeError("out of smoke"), EngineDeadError("gone")])
def test_any_other_error_is_the_threads_to_die_of(error):
    async def test(case):
        case.core.control_error = error
        call = case.call()
        await run_event_loop()
        with pytest.raises(type(error), match=str(error)):
            case.run()
        await run_event_loop()
        assert not call.done()
        case.calls.fail(EngineDeadError("it died"))
        with pytest.raises(EngineDeadError, match="it died"):
            await call

    run(test)


def test_everything_pending_fails_at_the_death():
    async def test(case):
        calls = [case.call() for _ in range(3)]
        ends = [asyncio.create_task(case.calls.wait_for_death()) for _ in range(2)]
        await run_event_loop()
        case.thread.death = EngineDeadError("it died")
        case.calls.fail(case.thread.death)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(error) for error in found] == ["it died"] * 3
        assert [str(death) for death in await asyncio.gather(*ends)] == ["it died"] * 2

    run(test)


def test_an_earlier_death_is_returned_at_once():
    async def test(case):
        case.thread.death = EngineDeadError("it died")
        assert await case.calls.wait_for_death() is case.thread.death
        with pytest.raises(EngineDeadError):
            await case.calls.call(COMMAND)

    run(test)


@pytest.mark.parametrize("error", [None, AdapterError("no")])
def test_a_result_for_a_cancelled_caller_is_dropped(error):
    async def test(case):
        case.core.control_error = error
        call = case.call()
        await run_event_loop()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        case.run()
        await run_event_loop()

    run(test)


@pytest.mark.parametrize("is_death", [False, True])
def test_a_result_for_a_closed_loop_is_dropped(is_death):
    case = Case()

    async def leave():
        case.call()
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    kept = []
    loop.set_exception_handler(lambda *_: None)
    loop.run_until_complete(leave())
    kept.extend(asyncio.all_tasks(loop))
    loop.close()
    if is_death:
        case.calls.fail(EngineDeadError("it died"))
    else:
        case.run()
    for task in kept:
        task._log_destroy_pending = False
