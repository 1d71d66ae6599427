"""The parent's end of an engine: last messages of a dead process, wakes, replies to old calls."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from processes import eventually

from quire.errors import EngineDeadError, GrammarError
from quire.launch.engine_process.engine_link import EngineLink
from quire.launch.engine_process.engine_wire import (
    Abort,
    Call,
    Connected,
    Failed,
    FromEngine,
    ReadStats,
    Reply,
    Shutdown,
    Stepped,
    ToEngine,
)
from quire.launch.engine_process.remote_core import RemoteCore
from quire.messages import EngineOutputs, EngineStats
from quire.process.error_message import ErrorMessage
from quire.process.ipc import encode
from quire.process.local.channel import Channel


class Peer:
    """A scripted engine process: it sends the given messages, and dies on demand."""

    pid = 0

    def __init__(self, folder):
        self.address = f"unix://{folder}/a"
        self.channel = Channel(FromEngine, self.address, is_listening=True)
        self.other = Channel(ToEngine, self.address, is_listening=False)
        self.ends = []
        self.num_kills = 0
        self._death_fd = os.eventfd(0)

    def fileno(self):
        return self._death_fd

    def end(self, timeout_s):
        self.ends.append(timeout_s)
        return "ended with exit code 3"

    def kill(self):
        self.num_kills += 1

    def die(self):
        os.eventfd_write(self._death_fd, 1)

    def say(self, message):
        self.other.send(message)

    def hear(self):
        return self.other.take(5.0)

    def close(self):
        self.other.close()
        os.close(self._death_fd)


@pytest.fixture
def peer(tmp_path):
    made = Peer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def link(peer):
    made = EngineLink(peer.channel, peer)
    peer.say(Connected())
    assert made.receive() == Connected()
    yield made
    made.close(EngineDeadError("over"))


def stats(number):
    return msgspec.Raw(encode(EngineStats(num_running=number)))


def in_a_while(call, *arguments, delay_s=0.03):
    threading.Timer(delay_s, call, arguments).start()


def test_what_was_sent_before_the_end_is_read_before_the_error(peer, link):
    peer.die()
    in_a_while(peer.say, Connected())
    assert link.receive() == Connected()
    with pytest.raises(EngineDeadError, match="exit code 3"):
        link.receive()


def test_a_last_message_is_raised_and_the_process_gets_time_to_end(peer, link):
    peer.say(Failed(ErrorMessage.of(EngineDeadError("out of smoke"))))
    for verb in (link.receive, link.check, lambda: link.send(Abort(["a"]))):
        with pytest.raises(EngineDeadError, match=r"^out of smoke$"):
            verb()
    assert peer.ends == [1.0]


def test_a_wake_is_for_one_receive_that_can_be_woken(peer, link):
    link.wake()
    assert link.receive(can_wake=True) is None
    in_a_while(peer.say, Connected())
    assert link.receive(can_wake=True) == Connected(), "it was woken once"
    link.wake()
    in_a_while(peer.say, Connected())
    assert link.receive() == Connected(), "a receive without can_wake waits for the message"


def test_commands_are_counted(peer, link):
    for number in range(3):
        assert link.num_sent == number
        link.send(Abort([str(number)]))
    assert [peer.hear().request_ids for _ in range(3)] == [["0"], ["1"], ["2"]]


def test_only_the_first_close_counts_and_says_how_long_the_process_gets(peer, link):
    link.close(EngineDeadError("first"), 2.5)
    link.close(EngineDeadError("second"))
    link.wake()
    assert peer.ends == [2.5]
    with pytest.raises(EngineDeadError, match="first"):
        link.check()


def test_a_fork_neither_ends_nor_kills_nor_wakes_the_engine(peer, link):
    pid = os.fork()
    if pid == 0:
        link.close(EngineDeadError("in a fork"))
        link.kill()
        link.wake()
        os._exit(len(peer.ends) + peer.num_kills)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    peer.say(Connected())
    assert link.receive(can_wake=True) == Connected()


def test_the_reply_to_an_interrupted_call_is_not_the_next_ones(peer, link):
    core = RemoteCore(link)
    peer.say(Reply(1, stats(7), ErrorMessage.of(GrammarError("of the old one"))))
    core.abort(["unknown"])
    link.send(Abort([]))  # so that the call is the second command
    peer.say(Reply(2, stats(5)))
    assert core.stats().num_running == 5
    assert isinstance(peer.hear(), Abort)
    assert peer.hear() == Call(2, ReadStats())


def test_an_idle_step_says_the_last_numbers(peer, link):
    core = RemoteCore(link)
    peer.say(Stepped(EngineOutputs([], EngineStats(num_running=3)), 0))
    peer.say(Reply(1, stats(9)))
    assert core.stats().num_running == 9
    assert core.has_work(), "a step has come meanwhile"
    assert core.step().stats.num_running == 3
    assert not core.has_work()
    assert core.step().stats.num_running == 3


def test_a_shutdown_gives_the_running_step_its_time(peer, link):
    core = RemoteCore(link)
    core.shutdown()
    core.shutdown()
    assert peer.ends == [10.0]


def test_a_poll_does_not_wait(peer, link):
    assert link.poll() is None
    peer.say(Connected())
    eventually(lambda: link.poll() == Connected())
    assert link.poll() is None


def test_a_poll_returns_the_last_messages_of_a_dead_process_first(peer, link):
    peer.say(Reply(1, stats(1)))
    peer.say(Reply(2, stats(2)))
    peer.die()
    assert [link.poll().call_id for _ in range(2)] == [1, 2]
    with pytest.raises(EngineDeadError, match="exit code 3"):
        link.poll()


def test_a_check_of_a_dead_engine_raises(peer, link):
    link.check()
    peer.die()
    started = time.monotonic()
    with contextlib.suppress(EngineDeadError):
        link.check()
        raise AssertionError("it lives")
    assert time.monotonic() - started < 5


def test_results_of_several_calls_may_be_taken_in_any_order(peer, link):
    core = RemoteCore(link)
    calls = [core.call(ReadStats()) for _ in range(2)]
    peer.say(Reply(calls[1], stats(5)))
    peer.say(Reply(calls[0], stats(3)))
    eventually(lambda: core.poll_step() is None and core.has_result(calls[0]))
    assert core.has_result(calls[1])
    assert core.result(calls[1]).num_running == 5
    assert core.result(calls[0]).num_running == 3


def test_steps_that_have_arrived_are_polled_one_by_one_before_the_death(peer, link):
    core = RemoteCore(link)
    assert core.poll_step() is None
    for number in (1, 2):
        peer.say(Stepped(EngineOutputs([], EngineStats(num_running=number)), 0))
    peer.die()
    assert [core.poll_step().stats.num_running for _ in range(2)] == [1, 2]
    with pytest.raises(EngineDeadError, match="exit code 3"):
        core.poll_step()


def test_a_process_with_much_to_read_is_told_to_stop_before_its_time_runs(peer, link):
    link.send(Abort(["x" * 10**6]))
    link.send(Shutdown())
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(lambda: [peer.hear(), peer.hear()])
        link.close(EngineDeadError("over"), 5.0)
        assert heard.result()[1] == Shutdown()
