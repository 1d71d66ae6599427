"""A process of its own watches a child's parent: no step, lock or stop signal of the child matters.

A thread would wait for the interpreter, which a step can hold, and it stops with its process. So
the child forks a watchdog before it does anything else. That one is in the child's process group
and ends the whole of it, itself included, when the parent or the child is gone.

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

NAME = "quire-watchdog"  # in a list of processes; the kernel takes 15 bytes
_DEAF_TO = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # what is sent to a whole group


def die_with(parent_pid: int, folder: str | None = None) -> None:
    """Let this process, which leads its group and has one thread, end when its parent does.

    Args:
        parent_pid: Who started it.
        folder: What to remove then.
    """
    parent_fd = os.pidfd_open(os.getppid())
    if os.getppid() != parent_pid:  # it is gone already, and the kernel gave us to somebody else
        _end_group(folder)
    child_fd = os.pidfd_open(os.getpid())
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
    if os.fork() == 0:
        _watch(parent_fd, child_fd, folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(parent_fd)
    os.close(child_fd)


def leave_to_parent(*signals: signal.Signals) -> None:
    """Do nothing when signals come; unlike SIG_IGN, that is not inherited by other programs."""
    for number in signals:
        signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


def _watch(parent_fd: int, child_fd: int, folder: str | None) -> NoReturn:
    """Live as the watchdog; the signals that were blocked stay so."""
    try:
        with open("/proc/self/comm", "w") as name:
            name.write(NAME)
        _close_all_but({parent_fd, child_fd})  # whoever waits for an end of file waits for none
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
    """End, with all that the child started."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the one that the list was read with
                os.close(int(name))
