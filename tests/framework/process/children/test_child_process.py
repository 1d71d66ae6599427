"""Start and end of a child process, which leaves nothing behind."""

import os
import select
import signal
import stat
import sys
import tempfile
import time

import pytest
from processes import eventually, is_running

from quire.errors import SettingsError
from quire.process.children.child_process import ChildProcess, SocketFolder

SLEEP = "import time; time.sleep(60)"
ECHO_TO_FILE = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""


@pytest.fixture
def run():
    children = []

    def start(code, *arguments, config=b""):
        children.append(ChildProcess(["-c", code, *map(str, arguments)], config))
        return children[-1]

    yield start
    for child in children:
        child.end(0.0)


def test_the_config_comes_on_the_standard_input_whole(run, tmp_path):
    config = os.urandom(300_000)
    child = run(ECHO_TO_FILE, tmp_path / "echo", config=config)
    assert child.end(10.0).startswith("ended with exit code 0")
    assert (tmp_path / "echo").read_bytes() == config


def test_one_that_dies_before_it_has_read_its_config_just_ended(run):
    child = run("raise SystemExit(7)", config=b"x" * 10**6)
    assert child.end(10.0).startswith("ended with exit code 7")


def test_its_end_gives_its_file_descriptor_back(run):
    child = run("pass")
    descriptor = child.fileno()
    os.fstat(descriptor)
    child.end(10.0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_signal_that_ended_it_has_a_name(run, number):
    child = run(SLEEP)
    os.kill(child.pid, number)
    assert f"was killed by {number.name}" in child.end(10.0)
    assert child.end(0.0) == child.end(0.0)


def test_its_end_makes_its_file_descriptor_readable(run):
    child = run(SLEEP)
    assert select.select([child], [], [], 0.05)[0] == []
    os.kill(child.pid, signal.SIGKILL)
    assert select.select([child], [], [], 10.0)[0] == [child]


def test_one_that_does_not_end_in_time_is_killed_with_all_that_it_started(run, tmp_path):
    child = run(WITH_A_CHILD, tmp_path / "pid")
    eventually(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text())
    grandchild = int((tmp_path / "pid").read_text())
    assert is_running(grandchild)
    assert "SIGKILL" in child.end(0.05)
    eventually(lambda: not is_running(grandchild))


def test_what_a_killed_one_had_started_goes_with_it(run, tmp_path):
    child = run(WITH_A_CHILD, tmp_path / "pid")
    eventually(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text())
    grandchild = int((tmp_path / "pid").read_text())
    os.kill(child.pid, signal.SIGKILL)
    child.end(10.0)
    eventually(lambda: not is_running(grandchild))


def test_a_collected_process_is_ended():
    child = ChildProcess(["-c", SLEEP], b"")
    pid = child.pid
    del child
    eventually(lambda: not is_running(pid))


def test_a_fork_of_the_parent_does_not_end_it(run):
    child = run(SLEEP)
    pid = os.fork()
    if pid == 0:
        try:
            child.end(0.0)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert is_running(child.pid)


def test_in_a_fork_end_does_not_wait_and_collection_does_not_kill(run):
    child = run(SLEEP)
    pid = os.fork()
    if pid == 0:
        began = time.monotonic()
        child.end(20.0)
        is_quick = time.monotonic() - began < 5
        child._finalizer()  # as at the end of the fork's program
        os._exit(0 if is_quick else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_running(child.pid)
    child.kill()
    assert "SIGKILL" in child.end(10.0)


def test_it_does_not_know_the_servers_key(run, tmp_path, monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", "secret")
    monkeypatch.setenv("QUIRE_MODEL", "demo")
    code = "import os, sys; open(sys.argv[1], 'w').write(repr(sorted(os.environ)))"
    assert run(code, tmp_path / "names").end(20.0).startswith("ended with exit code 0")
    names = (tmp_path / "names").read_text()
    assert "QUIRE_API_KEY" not in names
    assert "QUIRE_MODEL" in names


def test_one_that_ends_in_its_time_is_not_killed(run):
    child = run("import time; time.sleep(0.3); raise SystemExit(5)")
    assert child.end(20.0).startswith("ended with exit code 5")


def test_a_terminals_interrupt_is_not_for_it(run):
    child = run(SLEEP)
    assert os.getpgid(child.pid) != os.getpgid(0)
    assert os.getsid(child.pid) != os.getsid(0)


def test_elsewhere_than_on_linux_it_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SettingsError, match="needs Linux"):
        ChildProcess(["-c", SLEEP], b"")


def test_only_this_user_may_enter_the_sockets_folder():
    with SocketFolder() as folder:
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert folder.path.stat().st_uid == os.getuid()
        (folder.path / "engine").touch()
    assert not folder.path.exists()


def test_the_folder_lies_in_the_runtime_folder_if_there_is_one(tmp_path_factory, monkeypatch):
    place = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    with SocketFolder() as folder:
        assert folder.path.parent == place
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "gone"))
    with SocketFolder() as folder:
        assert str(folder.path.parent) == tempfile.gettempdir()


def test_a_path_that_no_socket_can_have_is_refused_with_the_way_out(tmp_path, monkeypatch):
    long = tmp_path / ("a" * 120)
    long.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(SettingsError, match="set TMPDIR"):
        SocketFolder()
    assert list(long.iterdir()) == []
