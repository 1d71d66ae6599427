"""A process beside the workers runs a module, exchanges frames, and ends with the engine."""

import os
import select
import signal
import subprocess
import sys

import pytest
from processes import descendants, eventually, is_running, path_with

from quire.errors import EngineDeadError
from quire.launch.workers.placing.helper_process import LocalHelper

MODULE = """
import os, subprocess, sys

def main(channel):
    while frame := channel.recv(65536):
        if frame == b"fail":
            sys.exit(3)
        if frame == b"child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            channel.send(str(child.pid).encode())
        else:
            channel.send(frame[::-1])
"""
ENGINE = """
import os, sys
from quire.launch.workers.placing.helper_process import LocalHelper
helper = LocalHelper("echoing")
helper.send(b"child")
print(helper.receive().decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "echoing.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def helper(folder):
    made = LocalHelper("echoing")
    yield made
    made.end(0.0)


def test_frames_keep_their_bounds(helper):
    helper.send(b"abc")
    helper.send(b"x" * 65536)
    assert helper.receive() == b"cba"
    assert helper.receive() == b"x" * 65536


def test_its_descriptor_is_readable_when_a_frame_has_arrived(helper):
    assert not select.select([helper], [], [], 0.1)[0]
    helper.send(b"abc")
    assert select.select([helper], [], [], 10.0)[0]


def test_a_helper_that_exits_is_named_with_its_status(helper):
    helper.send(b"fail")
    with pytest.raises(EngineDeadError, match="of echoing ended with exit code 3"):
        helper.receive()
    with pytest.raises(EngineDeadError, match="of echoing ended with exit code 3"):
        helper.send(b"abc")
    assert "exit code 3" in helper.end(0.0)


def test_a_helper_that_is_killed_is_named_with_the_signal(helper):
    helper.send(b"abc")
    helper.receive()
    (child, *_) = descendants(os.getpid())
    os.kill(child, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=f"process {child} .* was killed by SIGKILL"):
        helper.receive()


def test_ending_it_ends_what_it_has_started(helper):
    helper.send(b"child")
    child = int(helper.receive())
    assert helper.end(0.0).startswith("was killed by SIGKILL")
    eventually(lambda: not is_running(child))


def test_a_module_that_is_missing_ends_it(folder, capfd):
    missing = LocalHelper("no_such_module")
    with pytest.raises(EngineDeadError, match="no_such_module ended with exit code 1"):
        missing.receive()
    assert "ModuleNotFoundError" in capfd.readouterr().err


def test_it_dies_with_the_engine(folder):
    environment = os.environ | {"PYTHONPATH": path_with(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as engine:
        child = int(engine.stdout.readline())
        family = descendants(engine.pid)
        assert child in family
        engine.kill()
        eventually(lambda: not any(map(is_running, family)))
