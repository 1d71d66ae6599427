"""Trace of the Python calls of a process, in a file, to see where it hangs.

Each call of a function of quire or of its plugins, each return from one, and each call of a C
function by one, is a line, written at once: the last lines say what the process does. Arguments are
not written.
"""

import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

from quire.config import ENVIRONMENT_PREFIX

VARIABLE = f"{ENVIRONMENT_PREFIX}TRACE_CALLS"
MAX_BYTES = 64 * 2**20  # after which the file is renamed, and another one begins
_EVENTS = {"call": "->", "return": "<-", "c_call": "=>"}


def trace_calls_if_asked() -> None:
    """Start a trace if the environment names a file for it."""
    if target := os.environ.get(VARIABLE):
        TracedCalls(target).start()


class TracedCalls:
    """Writes the calls of this process, and of its forks, to files with their process ids.

    Args:
        target: Path; the id of the process is appended, as in `trace.1234`.
        max_bytes: Size after which the file is renamed to `trace.1234.old`.
    """

    def __init__(self, target: str, max_bytes: int = MAX_BYTES) -> None:
        self._target = target
        self._max_bytes = max_bytes
        self._names: dict[CodeType, str] = {}  # empty: not ours
        self._pid = 0
        self._descriptor = -1
        self._num_bytes = 0

    @property
    def path(self) -> Path:
        """The file of this process."""
        return Path(f"{self._target}.{os.getpid()}")

    def start(self) -> None:
        """Trace all threads that start from now on, and this one."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        mark = _EVENTS.get(event)
        if mark is None:
            return
        code = frame.f_code
        name = self._names.get(code)
        if name is None:
            name = self._names[code] = _name_of(code)
        if not name:
            return
        if event == "c_call":
            what = f"{arg} in {name}:{frame.f_lineno}"
        else:
            what = f"{name}:{frame.f_lineno}"
        thread = threading.get_native_id()
        self._write(f"{time.time():.6f} {thread} {mark} {what}\n".encode("ascii", "replace"))

    def _write(self, line: bytes) -> None:
        if self._pid != os.getpid() or self._num_bytes > self._max_bytes:
            self._open()
        self._num_bytes += os.write(self._descriptor, line)

    def _open(self) -> None:
        """Open the file of this process, which may be a fork, or begin another one."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        if self._num_bytes > self._max_bytes and self._pid == os.getpid():
            self.path.rename(f"{self.path}.old")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)
        self._pid, self._num_bytes = os.getpid(), 0


def _name_of(code: CodeType) -> str:
    """Return the name of a function of quire or a plugin, and empty for any other."""
    parts = Path(code.co_filename).parts
    for index, part in enumerate(parts[:-1]):
        if part == "quire" or part.startswith("quire_"):
            return f"{'.'.join(parts[index:]).removesuffix('.py')}.{code.co_qualname}"
    return ""
