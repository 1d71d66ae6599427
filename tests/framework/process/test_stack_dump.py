"""SIGUSR1 prints the stacks of all threads, and the process goes on."""

import os
import signal
import subprocess
import sys

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
