"""Watchdog process: kills a child and all its descendants when the child or its parent dies.

It is a separate process, because a thread would wait for the interpreter lock, which a step can
hold, and would be stopped together with its process. The child forks it before anything else. It
belongs to the child's process group, and kills the whole group, itself included.

    parent <-- pidfd -- watchdog -- pidfd --> child        (and all that the child starts)
                           '--- SIGKILL to the group ---'

The child watches the watchdog in turn, and starts another one if it is killed. PR_SET_PDEATHSIG
would not do instead: it also kills a child when only the thread that started it ends.
"""

import contextlib
import logging
import os
import select
import shutil
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

NAME = "quire-watchdog"  # name in process lists, at most 15 bytes
_BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # often sent to a whole group

logger = logging.getLogger(__name__)


def die_with(parent_pid: int, folder: str | None = None) -> "Watchdog":
    """Make this process end when its parent dies; it must lead its group and have one thread.

    Args:
        parent_pid: Process id of the parent.
        folder: Folder to remove when the parent dies.

    Returns:
        The watchdog, which is not watched itself yet.
    """
    parent_fd = os.pidfd_open(os.getppid())
    if os.getppid() != parent_pid:  # the parent is dead already, and this process was reparented
        _end_group(folder)
    child_fd = os.pidfd_open(os.getpid())
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
    pid = os.fork()
    if pid == 0:
        _watch(parent_fd, child_fd, folder)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Watchdog(pid, parent_fd, child_fd, folder)


class Watchdog:
    """The watchdog of this process.

    Args:
        pid: Process id of the watchdog.
        parent_fd: Process file descriptor of the parent of this process.
        child_fd: Process file descriptor of this process.
        folder: Folder to remove when the parent dies.
    """

    def __init__(self, pid: int, parent_fd: int, child_fd: int, folder: str | None) -> None:
        self._pid = pid
        self._parent_fd = parent_fd
        self._child_fd = child_fd
        self._folder = folder

    def guard(self) -> None:
        """Replace the watchdog whenever it dies, in a thread."""
        threading.Thread(target=self._guard, name="watchdog", daemon=True).start()

    def replace_if_dead(self) -> None:
        """Start another watchdog if this one was killed; never blocks.

        If none can be started, this process ends with its group: it must not outlive its parent.
        """
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid == 0:
            return
        if os.WIFEXITED(status):  # a watchdog that runs kills its group, and never exits
            self._end(f"it ended with exit code {os.WEXITSTATUS(status)}")
        try:
            self._pid = self._start_another()
        except (OSError, ImportError) as error:
            self._end(str(error))
        logger.warning("watchdog process %d was killed; %d takes its place", pid, self._pid)

    def _guard(self) -> None:
        while True:
            watchdog_fd = os.pidfd_open(self._pid)
            poller = select.poll()
            poller.register(watchdog_fd, select.POLLIN)
            poller.poll()
            os.close(watchdog_fd)
            self.replace_if_dead()

    def _start_another(self) -> int:
        """Start a watchdog by a new program, because a process with threads cannot just fork."""
        from quire.process.children.python_child import python_arguments  # not needed before

        fds = (self._parent_fd, self._child_fd)
        arguments = [str(fd) for fd in fds] + ([] if self._folder is None else [self._folder])
        return os.posix_spawn(
            sys.executable,
            [sys.executable, *python_arguments(__name__, arguments)],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds],  # makes them inheritable
            setsigmask=_BLOCKED_SIGNALS,
        )

    def _end(self, why: str) -> NoReturn:
        logger.critical(
            "process %d ends: its watchdog is gone, and no other can be started: %s",
            os.getpid(),
            why,
        )
        _end_group(None)


def main(arguments: list[str]) -> NoReturn:
    """Run a watchdog that takes the place of another one.

    Args:
        arguments: Process file descriptors of the parent and of the child and, if there is one,
            the folder to remove when the parent dies.
    """
    _watch(int(arguments[0]), int(arguments[1]), *arguments[2:])


def leave_to_parent(*signals: signal.Signals) -> None:
    """Ignore signals by an empty handler; unlike SIG_IGN, it is not inherited by other programs."""
    for number in signals:
        signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


def _watch(parent_fd: int, child_fd: int, folder: str | None = None) -> NoReturn:
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
