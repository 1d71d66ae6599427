"""One rank as the engine sees it: its name for people, and what it does when it hangs."""

import signal
import socket
import subprocess
import sys

import pytest
from processes import eventually
from scripted_rank import ThreadProcess

from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.rank_link import MAX_STACK_BYTES, RankLink, _is_stopped
from quire.launch.workers.worker_wire import Joined

HERE = socket.gethostname()
HANGING = """
import sys
from quire.process.stack_dump import offer_stack

def waits_for_another_rank(depth):
    if depth:
        return waits_for_another_rank(depth - 1)
    print(memory, flush=True)
    return sys.stdin.read()

with open("/proc/self/comm", "w") as name:
    name.write("a ) S name")
memory = offer_stack()
waits_for_another_rank(90)
"""


@pytest.fixture
def process():
    made = ThreadProcess()
    yield made
    made.end(0.0)


@pytest.fixture
def hanging(process):
    """A rank in a process that hangs, with a name that looks like fields of /proc."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        link = RankLink(0, WorkerGrid(), process)
        link.joined = Joined(0, HERE, child.pid, [], int(child.stdout.readline()))
        yield link, child
        child.kill()


@pytest.mark.parametrize(
    ("grid", "rank", "name"),
    [
        (WorkerGrid(), 0, "worker 0 of 1 (on a machine)"),
        (WorkerGrid(tp_size=2), 1, "worker 1 of 2 (tensor-parallel rank 1, on a machine)"),
        (WorkerGrid(pp_size=3), 2, "worker 2 of 3 (stage 2, on a machine)"),
        (WorkerGrid(2, 2), 2, "worker 2 of 4 (tensor-parallel rank 0, stage 1, on a machine)"),
    ],
)
def test_a_rank_is_named_by_its_place_in_the_grid(process, grid, rank, name):
    assert str(RankLink(rank, grid, process)) == name


def test_a_rank_that_has_joined_is_named_by_its_own_machine_and_process(process):
    link = RankLink(0, WorkerGrid(), process)
    link.joined = Joined(0, "another machine", 77, [], 0)
    assert str(link) == "worker 0 of 1 (process 77, on another machine)"


def test_the_state_of_a_rank_elsewhere_is_in_its_log(process):
    link = RankLink(0, WorkerGrid(), process)
    assert not link.is_local
    link.joined = Joined(0, "another machine", 77, [], 0)
    assert not link.is_local
    assert link.state() == "its state cannot be read from here; look at the log on another machine"


def test_a_rank_that_hangs_says_where(hanging):
    link, _ = hanging
    assert link.is_local
    state = link.state()
    assert state.startswith("its stack is\n")
    assert state.count("waits_for_another_rank") == 91


def test_a_second_look_at_a_rank_that_hangs_finds_it_where_it_was(hanging):
    link, child = hanging
    link.state()
    assert "waits_for_another_rank" in link.state()
    assert child.poll() is None


def test_only_the_end_of_many_stacks_is_told(hanging):
    link, _ = hanging
    eventually(lambda: len(link.state()) > MAX_STACK_BYTES, 60)
    assert len(link.state()) <= MAX_STACK_BYTES + len("its stack is\n")


def test_a_rank_that_is_stopped_by_a_signal_is_said_to_be(hanging):
    link, child = hanging
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: _is_stopped(child.pid))
    assert link.state() == "it is stopped by a signal (SIGSTOP or a debugger)"
    child.send_signal(signal.SIGCONT)
    eventually(lambda: not _is_stopped(child.pid))


def test_a_rank_that_has_ended_has_no_stack(hanging):
    link, child = hanging
    child.kill()
    child.wait()
    assert link.state() == "its stack cannot be read"
