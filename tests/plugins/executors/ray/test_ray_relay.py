"""A program that a relay has started ends as if it were the actor's child, and outlives both."""

import os
import signal
import subprocess
import sys

import pytest
from processes import eventually, is_running

from quire_executors.ray.ray_actor import RELAY

SLEEP = "import os, time; print(os.getpid(), os.getsid(0), flush=True); time.sleep(60)"


def relay(code, *arguments, **options):
    command = [sys.executable, "-m", RELAY, sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def sleeping():
    with relay(SLEEP) as process:
        pid, session = map(int, process.stdout.readline().split())
        assert session == pid
        yield process, pid
        for each in (process.pid, pid):
            if is_running(each):
                os.kill(each, signal.SIGKILL)


def test_the_program_outlives_the_relay(sleeping):
    process, pid = sleeping
    process.kill()
    process.wait()
    assert is_running(pid)


def test_the_relay_ends_with_the_program(sleeping):
    process, pid = sleeping
    os.kill(pid, signal.SIGKILL)
    assert process.wait(10.0) == -signal.SIGKILL


def test_another_signal_is_passed_on_too(sleeping):
    process, pid = sleeping
    os.kill(pid, signal.SIGTERM)
    assert process.wait(10.0) == -signal.SIGTERM
    eventually(lambda: not is_running(pid))


def test_the_program_has_its_arguments_its_input_and_its_exit_status():
    code = "import sys; print(sys.argv[1:], input()); sys.exit(7)"
    with relay(code, "a", "b", stdin=subprocess.PIPE) as process:
        said, _ = process.communicate("the key\n")
    assert (process.returncode, said) == (7, "['a', 'b'] the key\n")
