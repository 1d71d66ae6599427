"""Watchdog process: kills a child and all its descendants when the child or its parent dies.

It is a separate process, because a thread would wait for the interpreter lock, which a step can
hold, and would be stopped together with its process. The child forks it before anything else. It
belongs to the child's process group, and kills the whole group, itself included.

    parent <-- pidfd -- watchdog -- pidfd --> child        (and all that the child starts)
                           '--- SIGKILL to the group ---'
"""

import contextlib
import os
import select
import shutil
import signal
from types import FrameType
from typing import NoReturn

NAME = "quire-watchdog"  # name in process lists, at most 15 bytes
_BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # often sent to a whole group


def die_with(parent_pid: int, folder: str | None = None) -> None:
    """Make this process end when its parent dies; it must lead its group and have one thread.

    Args:
        parent_pid: Process id of the parent.
        folder: Folder to remove when the parent dies.
    """
    parent_fd = os.pidfd_open(os.getppid())
    if os.getppid() != parent_pid:  # the parent is dead already, and this process was reparented
        _end_group(folder)
    child_fd = os.pidfd_open(os.getpid())
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
    if os.fork() == 0:
        _watch(parent_fd, child_fd, folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(parent_fd)
    os.close(child_fd)


def leave_to_parent(*signals: signal.Signals) -> None:
    """Ignore signals by an empty handler; unlike SIG_IGN, it is not inherited by other programs."""
    for number in signals:
        signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


def _watch(parent_fd: int, child_fd: int, folder: str | None) -> NoReturn:
    """Run the watchdog; the blocked signals stay blocked."""
    try:
        with open("/proc/self/comm", "w") as name:
            name.write(NAME)
        _close_all_but({parent_fd, child_fd})  # inherited pipes must not stay open
        poller = select.poll()
        poller.register(parent_fd, select.POLLIN)
        poller.register(child_fd, select.POLLIN)
        ended = [fd for fd, _ in poller.poll()]
        if child_fd not in ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child_fd, signal.SIGKILL)
        _end_group(folder if parent_fd in ended else None)
    finally:
        os._exit(1)


def _end_group(folder: str | None) -> NoReturn:
    """Kill this process group: the child, all its descendants and this process."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
