"""The engine of another process: it is joined while it lives, and never ended from here."""

import os
import subprocess
import sys

import pytest

from quire.errors import EngineDeadError
from quire.launch.engine_process.joined_engine import JoinedEngine


def test_an_engine_that_is_gone_cannot_be_joined(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(EngineDeadError, match="is gone"):
        JoinedEngine.join(f"unix://{tmp_path}/a", gone.pid)


def test_an_engine_that_does_not_listen_cannot_be_joined(tmp_path):
    with pytest.raises(EngineDeadError, match="does not listen"):
        JoinedEngine.join(f"unix://{tmp_path}/a", os.getpid())


def test_it_is_not_ended_from_here():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    joined = JoinedEngine(process.pid)
    assert not joined.kill()
    assert "the log says why" in joined.end(0.0)
    assert process.poll() is None
    process.communicate(b"\n")
    assert process.returncode == 0
