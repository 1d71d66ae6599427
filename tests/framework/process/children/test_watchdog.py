"""A child and all its descendants end with the parent, whatever the child does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import descendants, eventually, is_running

from quire.process.children.watchdog import NAME

CHILD = """
import ctypes, os, signal, subprocess, sys, time
from quire.process.children.watchdog import die_with
die_with(int(sys.argv[1]), sys.argv[2]).guard()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
os.write(1, b"ready\\n")
"""
SLEEP = "time.sleep(60)"
PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]]
subprocess.Popen(command, start_new_session=True)
time.sleep(60)
"""
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture
def start(tmp_path):
    """Start a parent whose child does something; returns it, and the processes below it."""
    (tmp_path / "folder").mkdir()
    parents = []

    def run(what):
        command = [sys.executable, "-c", PARENT, CHILD + what, str(tmp_path / "folder")]
        parents.append(subprocess.Popen(command, text=True, **PIPES))
        assert parents[-1].stdout.readline() == "ready\n"
        below = descendants(parents[-1].pid)
        assert len(below) == 3  # the child, its watchdog, and what it started
        return parents[-1], below

    yield run
    for parent in parents:
        parent.kill()
        parent.communicate()


def end(parent):
    """End a parent, and return what it and its child have written."""
    parent.kill()
    return parent.communicate()


def replaced(child, watchdog):
    """Kill a watchdog, and return the one that takes its place; the dead one is no zombie."""
    os.kill(watchdog, signal.SIGKILL)
    eventually(lambda: watchdogs_of(child) not in ([], [watchdog]))
    [other] = watchdogs_of(child)
    return other


def blocked_signals(pid):
    """Return the signals that a process has blocked."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(
        next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16
    )
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


def watchdogs_of(pid):
    """Return the watchdogs of a process, zombies included."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")  # by the thread that started them
    found = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in found if name_of(child) == NAME]


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


@pytest.mark.parametrize(
    "what",
    [
        SLEEP,
        "ctypes.PyDLL(None).sleep(60)",  # holds the interpreter
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_when_the_parent_is_killed_nothing_is_left(start, tmp_path, what):
    parent, below = start(what)
    parent.kill()
    assert eventually(lambda: not any(map(is_running, below))) < 10.0
    assert not (tmp_path / "folder").exists()


def test_when_the_child_is_killed_what_it_started_goes_too(start, tmp_path):
    parent, below = start(SLEEP)
    child = min(below)
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, below)))
    assert is_running(parent.pid)
    assert (tmp_path / "folder").exists()  # it is the parent's


def test_signals_for_a_whole_group_do_not_end_the_watchdog(start):
    parent, below = start("signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP)
    child, watchdog, started = sorted(below)
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= blocked_signals(watchdog)
    os.kill(watchdog, signal.SIGTERM)
    os.kill(watchdog, signal.SIGINT)
    parent.kill()
    eventually(lambda: not any(map(is_running, (child, watchdog, started))))


def test_a_watchdog_that_is_killed_is_replaced(start, tmp_path):
    parent, below = start(SLEEP)
    child, watchdog, _ = sorted(below)
    watchdog = replaced(child, watchdog)
    watchdog = replaced(child, watchdog)
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= blocked_signals(watchdog)
    os.kill(watchdog, signal.SIGTERM)
    parent.kill()
    eventually(lambda: not any(map(is_running, {*below, watchdog})))
    assert not (tmp_path / "folder").exists()


def test_a_process_that_can_have_no_watchdog_ends_and_says_so(start):
    parent, below = start("sys.executable = '/nowhere'; " + SLEEP)
    child, watchdog, _ = sorted(below)
    os.kill(watchdog, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, below)))
    _, err = end(parent)
    assert f"process {child} ends: its watchdog is gone" in err


def test_a_watchdog_that_does_not_start_ends_its_process(start):
    parent, below = start("sys.executable = '/bin/false'; " + SLEEP)
    watchdog = sorted(below)[1]
    os.kill(watchdog, signal.SIGKILL)
    eventually(lambda: not any(map(is_running, below)))
    _, err = end(parent)
    assert "it ended with exit code 1" in err


def test_a_parent_that_is_gone_already_ends_the_child():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, "1", "nowhere"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    out, _ = child.communicate(timeout=60)
    assert (out, child.returncode) == (b"", -signal.SIGKILL)
