"""A program that was started for a parent dies with it."""

import os
import signal
import subprocess
import sys

from processes import eventually, is_running

from quire_executors.ray.ray_actor import CHILD

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
PARENT = f"""
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", {CHILD!r}, str(os.getpid()), *{SLEEP!r}],
    stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_the_program_is_killed_when_its_parent_is():
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        os.kill(parent.pid, signal.SIGKILL)
        eventually(lambda: not is_running(child))


def test_a_program_whose_parent_has_died_already_does_not_start():
    command = [sys.executable, "-m", CHILD, "1", sys.executable, "-c", "print('up')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the parent died" in done.stderr


def test_the_program_has_its_arguments_and_its_exit_status():
    code = "import sys; print(sys.argv[1:]); sys.exit(7)"
    command = [sys.executable, "-m", CHILD, str(os.getpid()), sys.executable, "-c", code, "a", "b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "['a', 'b']\n")
