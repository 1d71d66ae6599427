"""Signals make a process print its stacks or write them to memory, and it goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import eventually

from quire.process.children.stack_dump import (
    MAX_STACK_BYTES,
    STACK_SIGNAL,
    _is_stopped,
    process_state,
)

CODE = """
import sys, threading
from quire.process.children.stack_dump import enable_stack_dumps

def waits_for_ever():
    threading.Event().wait()

enable_stack_dumps()
threading.Thread(target=waits_for_ever, daemon=True).start()
print("ready", flush=True)
print("went on:", sys.stdin.readline().strip(), flush=True)
"""

HANGING = """
import sys
from quire.process.children.stack_dump import offer_stack

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
def hanging():
    """A process that hangs, with a name that looks like fields of /proc: id, memory, and handle."""
    with subprocess.Popen(
        [sys.executable, "-c", HANGING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        yield child.pid, int(child.stdout.readline()), child
        child.kill()


def test_every_thread_is_shown_and_the_process_goes_on():
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGUSR1)
        out, stacks = child.communicate("well\n", timeout=60)
    assert (child.returncode, out) == (0, "went on: well\n")
    assert "waits_for_ever" in stacks
    assert "Current thread" in stacks


def test_a_process_without_stderr_is_left_alone(monkeypatch):
    from quire.process.children import stack_dump

    monkeypatch.setattr(sys, "__stderr__", None)
    stack_dump.enable_stack_dumps()


OFFER_CODE = """
import sys, threading
from quire.process.children.stack_dump import offer_stack

def waits_for_a_line():
    return sys.stdin.readline().strip()

def waits_for_ever():
    threading.Event().wait()

threading.Thread(target=waits_for_ever, daemon=True).start()
print(offer_stack(), flush=True)
print("went on:", waits_for_a_line(), flush=True)
"""


def test_a_stack_is_offered_in_memory_to_who_asks_and_the_process_goes_on():
    with subprocess.Popen(
        [sys.executable, "-c", OFFER_CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        memory = Path(f"/proc/{child.pid}/fd/{int(child.stdout.readline())}")
        assert memory.read_bytes() == b""
        sizes = []
        for _ in range(2):
            os.kill(child.pid, STACK_SIGNAL)
            eventually(lambda: memory.stat().st_size > sum(sizes[-1:]))
            eventually(lambda: memory.read_text().count("waits_for_ever") > len(sizes))
            sizes.append(memory.stat().st_size)
        stacks = memory.read_text()
        out, errors = child.communicate("well\n", timeout=60)
    assert (child.returncode, out, errors) == (0, "went on: well\n", "")
    assert "waits_for_a_line" in stacks
    assert "waits_for_ever" in stacks


def test_a_process_that_hangs_says_where(hanging):
    pid, memory, _ = hanging
    state = process_state(pid, memory)
    assert state.startswith("its stack is\n")
    assert state.count("waits_for_another_rank") == 91


def test_a_second_look_at_a_process_that_hangs_finds_it_where_it_was(hanging):
    pid, memory, child = hanging
    process_state(pid, memory)
    assert "waits_for_another_rank" in process_state(pid, memory)
    assert child.poll() is None


def test_only_the_end_of_many_stacks_is_told(hanging):
    pid, memory, _ = hanging
    eventually(lambda: len(process_state(pid, memory)) > MAX_STACK_BYTES, 60)
    assert len(process_state(pid, memory)) <= MAX_STACK_BYTES + len("its stack is\n")


def test_a_process_that_is_stopped_by_a_signal_is_said_to_be(hanging):
    pid, memory, child = hanging
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: _is_stopped(pid))
    assert process_state(pid, memory) == "it is stopped by a signal (SIGSTOP or a debugger)"
    child.send_signal(signal.SIGCONT)
    eventually(lambda: not _is_stopped(pid))


def test_a_process_that_has_ended_has_no_stack(hanging):
    pid, memory, child = hanging
    child.kill()
    child.wait()
    assert process_state(pid, memory) == "its stack cannot be read"


def test_a_process_whose_memory_is_not_known_has_a_log(hanging):
    pid, _, _ = hanging
    assert process_state(pid, None) == "it has not joined; look at its log"
