"""The trace of a process ends with what the process does."""

import os
import subprocess
import sys

from processes import eventually

from quire.process.call_trace import TracedCalls

HANGS = """
import threading
from quire.process.call_trace import trace_calls_if_asked
trace_calls_if_asked()
from quire.process.wake_event import WakeEvent
from quire.machine.byte_size import parse_byte_size

def work():
    parse_byte_size("4GiB", "x")
    threading.Event().wait()

threading.Thread(target=work, daemon=True).start()
threading.Event().wait()
"""
FORKS = """
import os
from quire.process.call_trace import trace_calls_if_asked
trace_calls_if_asked()
from quire.machine.byte_size import parse_byte_size
pid = os.fork()
parse_byte_size("4GiB" if pid else "5GiB", "x")
if pid:
    os.waitpid(pid, 0)
    print(pid)
"""


def environment(tmp_path):
    return os.environ | {"QUIRE_TRACE_CALLS": str(tmp_path / "calls")}


def test_a_process_that_hangs_has_written_its_last_call(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HANGS], env=environment(tmp_path))
    try:
        path = tmp_path / f"calls.{process.pid}"
        last = "<- quire.machine.byte_size.parse_byte_size"
        eventually(lambda: path.exists() and last in path.read_text())
    finally:
        process.kill()
        process.wait()
    assert path.stat().st_mode & 0o777 == 0o600
    lines = path.read_text().splitlines()
    assert any("-> quire.machine.byte_size.parse_byte_size" in line for line in lines)
    assert any("=> <built-in" in line for line in lines)
    assert not any("threading" in line.split(" in ")[-1] for line in lines)


def test_a_fork_writes_a_file_of_its_own(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=environment(tmp_path), capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    child = (tmp_path / f"calls.{done.stdout.strip()}").read_text()
    assert "-> quire.machine.byte_size.parse_byte_size" in child
    assert len(list(tmp_path.iterdir())) == 2


def test_a_large_file_gives_way_to_another(tmp_path):
    trace = TracedCalls(str(tmp_path / "calls"), max_bytes=100)
    for number in range(30):
        trace._write(b"%d 45678901234567890\n" % number)
    os.close(trace._descriptor)
    old = (tmp_path / f"calls.{os.getpid()}.old").read_text()
    last = (tmp_path / f"calls.{os.getpid()}").read_text()
    assert last.splitlines()[-1].startswith("29 ")
    assert len(old) <= 200
    assert int(last.split()[0]) == int(old.splitlines()[-1].split()[0]) + 1
