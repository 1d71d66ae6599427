"""The process of a rank as a child: its end is seen, described once, and leaves nothing."""

import os
import select
import socket

import pytest
from processes import descendants, eventually, is_running

from quire.launch.workers.placing.local_process import LocalProcess


def started():
    """A rank without a config: it ends as soon as it has read that there is none."""
    return LocalProcess([str(os.getpid())], b"")


@pytest.fixture
def process(capfd):
    made = started()
    yield made
    made.end(0.0)


def test_a_rank_on_this_machine_is_a_child_of_the_engine(process):
    assert process.node == socket.gethostname()
    assert process.pid in descendants(os.getpid())
    assert "worker_process" in "".join(descendants(os.getpid()).values())


def test_the_end_is_seen_by_its_descriptor_and_described_the_same_way_again(process):
    assert select.select([process.fileno()], [], [], 60)[0]
    text = process.end(5)
    assert text.startswith("ended with exit code 1")
    assert process.end(0.0) == text
    assert process.fileno() is None


def test_a_rank_that_is_killed_has_no_process_left(process):
    pids = [pid for pid, line in descendants(os.getpid()).items() if "worker_process" in line]
    process.kill()
    process.kill()
    assert process.end(5).startswith("was killed by SIGKILL")
    assert process.end(5).startswith("was killed by SIGKILL")
    eventually(lambda: not any(is_running(pid) for pid in pids))
    process.kill()
