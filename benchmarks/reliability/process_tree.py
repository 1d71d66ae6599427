"""State of a server's processes, from /proc: descendants, memory, descriptors, threads, sockets."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

LISTEN = "0A"  # state of a socket in /proc/net/tcp
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of a living process after its name; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields if fields[0] != "Z" else None


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return stat_of(pid) is not None


def tree(pid: int) -> list[int]:
    """Return a process and its living descendants."""
    children = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_of(int(name))) is not None:
            children[int(fields[1])].append(int(name))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def child_of_module(pid: int, module: str) -> int:
    """Return the descendant of a process that runs a module."""
    found = [child for child in tree(pid)[1:] if module in command_of(child)]
    parents = [child for child in found if _parent(child) not in found]  # not its watchdog
    if len(parents) != 1:
        raise RuntimeError(f"{len(parents)} processes run {module}, not one")
    return parents[0]


def memory_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of processes; pages that several share count for each."""
    fields = [stat_of(pid) for pid in pids]
    return sum(int(each[21]) * PAGE_BYTES for each in fields if each is not None)


def num_descriptors(pids: Iterable[int]) -> int:
    """Return the number of open file descriptors of processes."""
    return sum(len(_entries(f"/proc/{pid}/fd")) for pid in pids)


def num_threads(pids: Iterable[int]) -> int:
    """Return the number of threads of processes."""
    return sum(len(_entries(f"/proc/{pid}/task")) for pid in pids)


def listening_addresses(pids: Iterable[int]) -> list[str]:
    """Return the TCP addresses, in hexadecimal, on which processes listen."""
    inodes = set()
    for pid in pids:
        for name in _entries(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
            except FileNotFoundError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1])
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float) -> float | None:
    """Wait until a condition holds; return the seconds that it took, or None."""
    started = time.monotonic()
    while time.monotonic() < started + timeout_s:
        if condition():
            return time.monotonic() - started
        time.sleep(0.005)
    return None


def _parent(pid: int) -> int:
    fields = stat_of(pid)
    return int(fields[1]) if fields else 0


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
