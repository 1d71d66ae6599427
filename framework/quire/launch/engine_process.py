"""`python -m quire.launch.engine_process`: watch the parent first, then become an engine.

The config comes on the standard input, as msgpack. Nothing heavy is imported before the parent is
watched, so its death is never noticed late.
"""

import os
import select
import shutil
import signal
import sys
import threading
from typing import NoReturn


def main(arguments: list[str]) -> int:
    """Run an engine until the parent says stop, or is gone; returns the exit status.

    Args:
        arguments: The parent's process id, and the folder of its socket.
    """
    # Signals are for the parent, which stops us in order; its death is seen in another way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with(int(arguments[0]), arguments[1])

    from quire.ipc import decode
    from quire.launch.engine_wire import EngineConfig
    from quire.launch.served_engine import run

    return run(decode(sys.stdin.buffer.read(), EngineConfig))


def die_with(parent_pid: int, socket_folder: str) -> None:
    """Watch the parent from a thread of its own, which no step can delay."""
    death_fd = os.pidfd_open(os.getppid())
    if os.getppid() != parent_pid:  # it is gone already, and the kernel gave us to somebody else
        _follow(socket_folder)
    watcher = threading.Thread(
        target=_die_after, args=(death_fd, socket_folder), name="quire-parent", daemon=True
    )
    watcher.start()


def _die_after(death_fd: int, socket_folder: str) -> NoReturn:
    poller = select.poll()
    poller.register(death_fd, select.POLLIN)
    poller.poll()
    _follow(socket_folder)


def _follow(socket_folder: str) -> NoReturn:
    """End, with all that this process started."""
    shutil.rmtree(socket_folder, ignore_errors=True)
    if os.getpgrp() == os.getpid():  # ours alone, as the parent arranged it
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
