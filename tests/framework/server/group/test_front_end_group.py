"""The processes of a server: ready together, started again after a death, and ended in order."""

import asyncio
import os
import signal
import socket

import pytest
from processes import is_running

from quire.errors import QuireError
from quire.process.children.child_process import ChildProcess
from quire.server.group.front_end_group import FrontEndGroup
from quire.server.group.launched import Launched

PROGRAM = """
import asyncio, socket, sys
from quire.server.group.control_stream import ControlStream
from quire.server.group.group_wire import *

async def main(fd, fails):
    parent = await ControlStream.of(socket.socket(fileno=fd), ToProcess)
    begin = await parent.receive()
    if fails:
        sys.exit(3)
    parent.send(EnteredEngine())
    parent.send(ReadyToServe())
    parent.send(Report((True, {"status": "ready"}), None, []))
    while (message := await parent.receive()) is not None:
        match message:
            case ReadSamples():
                samples = [("n", "n_total", (("engine", bytes(begin.engine)[1:].decode()),), 1.0)]
                parent.send(Samples(message.call_id, samples))
            case Render():
                pass
            case Drain():
                parent.send(Drained())
            case StopServing():
                return

asyncio.run(main(int(sys.argv[1]), len(sys.argv) > 2))
"""


class Door:
    """A way into an engine that is not there."""

    def __init__(self):
        self.calls = []

    async def open(self, number):
        self.calls.append(("open", number))
        return b"\xa1" + str(number).encode()  # a text in msgpack

    def entered(self, number):
        self.calls.append(("entered", number))

    async def close(self, number):
        self.calls.append(("close", number))


class Group(FrontEndGroup):
    """A group of scripted processes."""

    def __init__(self, count, fails=False):
        self.ended = []
        self.pids = []
        super().__init__(count, self.ended.append)
        self.door = Door()
        self.launch(lambda number: self._scripted(fails=fails))

    def _scripted(self, fails):
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = ["-c", PROGRAM, str(theirs.fileno()), *(["fails"] if fails else [])]
            process = ChildProcess(arguments, b"", fds=[theirs.fileno()])
        self.pids.append(process.pid)
        return Launched(process, ours)


async def render(accept):
    return accept.encode(), "text/plain"


def run(test, **options):
    """Run a coroutine function with a group, which leaves no process."""

    async def start():
        group = Group(2, **options)
        try:
            await test(group)
        finally:
            await group.stop(5.0)
        await eventually(lambda: not any(map(is_running, group.pids)))

    asyncio.run(start())


async def eventually(condition):
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("never")


def test_all_are_ready_and_let_into_the_engine_before_one_serves():
    async def test(group):
        await group.start(render)
        assert len(group.members) == 2
        assert all(member.ready.is_set() for member in group.members)
        assert set(group.door.calls) == {(w, n) for w in ("open", "entered") for n in (1, 2)}

    run(test)


def test_one_that_does_not_start_is_an_error_of_the_start():
    async def test(group):
        with pytest.raises(QuireError, match="did not start: it ended with exit code 3"):
            await group.start(render)

    run(test, fails=True)


def test_one_that_dies_is_forgotten_by_the_engine_and_started_again(caplog):
    async def test(group):
        await group.start(render)
        before = group.members
        os.kill(group.pids[0], signal.SIGKILL)
        await eventually(lambda: ("close", 1) in group.door.calls)
        assert group.ended == [1]
        assert group.members == before[1:]
        await eventually(lambda: len(group.members) == 2 and group.members[1].ready.is_set())
        assert group.door.calls.count(("open", 1)) == 2
        assert len(group.pids) == 3

    run(test)
    assert "front end 1 was killed by SIGKILL" in caplog.text


def test_metrics_are_those_of_all_and_remain_after_a_death():
    async def test(group):
        await group.start(render)
        while not all(samples := await group.read_samples()):
            pass  # a process that has no time is shown as it was: without any
        assert sorted(each[0][2] for each in samples) == [(("engine", "1"),), (("engine", "2"),)]
        os.kill(group.pids[1], signal.SIGKILL)
        await eventually(lambda: ("close", 2) in group.door.calls)
        assert [each[0][2] for each in group.retired] == [(("engine", "2"),)]

    run(test)


def test_they_drain_together_and_the_health_is_what_they_report():
    async def test(group):
        await group.start(render)
        await eventually(lambda: all(each.health[0] for each in group.members))
        group.drain()
        await asyncio.wait_for(group.wait_until_drained(), 30)

    run(test)


def test_one_that_is_stopped_answers_as_it_was_before_and_is_killed_at_the_end():
    async def test(group):
        await group.start(render)
        await group.read_samples()
        os.kill(group.pids[0], signal.SIGSTOP)
        assert len(await group.read_samples()) == 2

    run(test)
