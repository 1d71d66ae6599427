"""State of other processes, from /proc."""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from quire.process.children.watchdog import NAME


def is_running(pid: int) -> bool:
    """Whether a process is alive; a zombie is not."""
    return _status(pid) is not None


def descendants(pid: int) -> dict[int, str]:
    """Return the living descendants of a process, with their command lines."""
    children = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (status := _status(int(name))) is not None:
            children[int(status[1])].append(int(name))
    found, todo = {}, [pid]
    while todo:
        for child in children[todo.pop()]:
            found[child] = command_of(child)
            todo.append(child)
    return found


def workers_of(pid: int) -> list[int]:
    """Return the children of a process, without its watchdog."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [child for child in map(int, children.read().split()) if _name(child) != NAME]


def path_with(folder: Path | str) -> str:
    """Return a PYTHONPATH with a folder before this process's own path."""
    return os.pathsep.join([str(folder), *filter(None, sys.path)])


WAIT_S = 60.0  # for what takes milliseconds, on a machine where twenty others compute


def eventually(condition: Callable[[], object], timeout_s: float = WAIT_S) -> float:
    """Wait until a condition is true; returns the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + timeout_s, "never"
        time.sleep(0.01)
    return time.monotonic() - started


def _status(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields if fields[0] != "Z" else None


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
