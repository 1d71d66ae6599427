"""Worker processes of a test: signals to a rank in a phase, and what is left of a launch."""

import gc
import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import eventually

MARK = "TEST_LAUNCH_MARK"
MODULE = "quire.launch.workers.worker_process"
JOINED = logging.getLogger("quire.launch.workers.ranks.worker_set")
SHARED_MEMORY = Path("/dev/shm")
LISTEN = "0A"  # state in /proc/net/tcp


class WatchedLaunch:
    """The processes that are started while the mark is in the environment.

    Args:
        sockets: Folder for the sockets.
        monkeypatch: Sets the environment of the processes.
    """

    def __init__(self, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sockets = sockets
        self.pids: list[int] = []  # of the ranks, once they have joined
        self._mark = uuid.uuid4().hex
        monkeypatch.setenv(MARK, self._mark)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
        self._shared = _shared_memory()
        self._on_join = _OnJoin(self)
        self._calls: list[threading.Thread] = []
        JOINED.addHandler(self._on_join)
        JOINED.setLevel(logging.INFO)

    def processes(self) -> dict[int, str]:
        """Return the living processes of the launch, with their command lines."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            if f"{MARK}={self._mark}" in _text(name, "environ").split("\0"):
                found[int(name)] = _text(name, "cmdline").replace("\0", " ")
        return found

    def workers(self) -> list[int]:
        """Return the processes of the ranks that were started, in order; they may not have joined.

        A watchdog has the command line of its worker, and another process group than its own.
        """
        found = [pid for pid, line in self.processes().items() if MODULE in line]
        return sorted(pid for pid in found if _leads(pid))

    def once_started(self, rank: int, act: Callable[[int], Any]) -> None:
        """Call with the process of a rank as soon as it is started, long before it has joined."""

        def wait() -> None:
            eventually(lambda: len(self.workers()) > rank, 30)
            act(self.workers()[rank])

        self._start(wait)

    def once_joined(self, act: Callable[[], Any]) -> None:
        """Call when all ranks have joined, before they are told to load."""
        self._on_join.act = act

    def once(self, condition: Callable[[], object], act: Callable[[], Any]) -> None:
        """Call in a thread as soon as a condition holds."""
        self._start(lambda: (eventually(condition, 30), act()))

    def check_devices(self) -> None:
        """Check that no process listens on a port or has a file in /dev/shm."""
        listening = {line[9] for line in _sockets() if line[3] == LISTEN}
        for pid in self.processes():
            targets = _open_files(pid)
            assert not [each for each in targets if each.startswith(str(SHARED_MEMORY))]
            found = {each[len("socket:[") : -1] for each in targets if each.startswith("socket:[")}
            assert not found & listening

    def close(self) -> None:
        """Check that nothing is left."""
        JOINED.removeHandler(self._on_join)
        for call in self._calls:
            call.join(30)
            assert not call.is_alive()
        eventually(lambda: not self.processes())
        assert list(self.sockets.iterdir()) == []
        eventually(lambda: not _shared_memory() - self._shared)

    def _start(self, call: Callable[[], Any]) -> None:
        self._calls.append(threading.Thread(target=call, daemon=True))
        self._calls[-1].start()


class _OnJoin(logging.Handler):
    """Reads the processes of the ranks from the log line with which a launch begins to load."""

    def __init__(self, launch: WatchedLaunch) -> None:
        super().__init__()
        self.act: Callable[[], Any] = lambda: None
        self._launch = launch

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("workers: "):
            self._launch.pids = [int(pid) for pid in re.findall(r"process (\d+)", text)]
            self.act()


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedLaunch]:
    """Yield a launch, and check afterwards that nothing is left of it."""
    gc.collect()
    (tmp_path / "r").mkdir()
    launch = WatchedLaunch(tmp_path / "r", monkeypatch)
    yield launch
    launch.close()


def open_files() -> dict[str, str]:
    """Return the open file descriptors of this process."""
    gc.collect()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
    return found


def _text(pid: int | str, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _leads(pid: int) -> bool:
    fields = _text(pid, "stat").rpartition(")")[2].split()
    return bool(fields) and int(fields[2]) == pid


def _open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def _sockets() -> list[list[str]]:
    lines = [
        *_text("self", "net/tcp").splitlines()[1:],
        *_text("self", "net/tcp6").splitlines()[1:],
    ]
    return [line.split() for line in lines]


def _shared_memory() -> set[str]:
    return set(os.listdir(SHARED_MEMORY))
