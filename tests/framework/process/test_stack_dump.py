"""Signals make a process print its stacks or write them to memory, and it goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from processes import eventually

from quire.process.stack_dump import STACK_SIGNAL

CODE = """
import sys, threading
from quire.process.stack_dump import enable_stack_dumps

def waits_for_ever():
    threading.Event().wait()

enable_stack_dumps()
threading.Thread(target=waits_for_ever, daemon=True).start()
print("ready", flush=True)
print("went on:", sys.stdin.readline().strip(), flush=True)
"""


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
        out, stacks = child.communicate("well\n", timeout=30)
    assert (child.returncode, out) == (0, "went on: well\n")
    assert "waits_for_ever" in stacks
    assert "Current thread" in stacks


def test_a_process_without_stderr_is_left_alone(monkeypatch):
    from quire.process import stack_dump

    monkeypatch.setattr(sys, "__stderr__", None)
    stack_dump.enable_stack_dumps()


OFFER_CODE = """
import sys, threading
from quire.process.stack_dump import offer_stack

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
        out, errors = child.communicate("well\n", timeout=30)
    assert (child.returncode, out, errors) == (0, "went on: well\n", "")
    assert "waits_for_a_line" in stacks
    assert "waits_for_ever" in stacks
