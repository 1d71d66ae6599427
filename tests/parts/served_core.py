"""An engine core behind a real channel, served from a thread instead of a process."""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.errors import EngineDeadError
from quire.frontend.dispatch.backlog import Backlog
from quire.launch.engine_process.engine_link import EngineLink
from quire.launch.engine_process.engine_wire import Connected, FromEngine, ToEngine
from quire.launch.engine_process.remote_core import RemoteCore
from quire.launch.engine_process.served_engine import serve
from quire.process.local.channel import Channel


class ServingThread:
    """A thread in place of the link's `ChildProcess`: it can be joined, and its end is visible.

    Args:
        core: Object with the methods of an `EngineCore`.
        address: Address on which the parent listens.
        shared: Work of several front ends; None: the parent is the only one.
    """

    pid = 0

    def __init__(self, core: Any, address: str, shared: Backlog | None = None) -> None:
        self.core = core
        self._shared = shared
        self.channel = Channel(ToEngine, address, is_listening=False)
        self._death_fd, self._killed_fd = os.eventfd(0), os.eventfd(0)
        self.channel.watch(self._killed_fd)
        self._is_killed = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def fileno(self) -> int:
        return self._death_fd

    def end(self, timeout_s: float) -> str:
        self._thread.join(timeout_s)
        return "still runs" if self._thread.is_alive() else "ended with its thread"

    def kill(self) -> bool:
        """A thread cannot be killed."""
        return True

    def die(self) -> None:
        """End a scripted core that the parent has left, as a process would have been killed."""
        self._is_killed = self.core.is_dead = True
        os.eventfd_write(self._killed_fd, 1)

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        for fd in (self._death_fd, self._killed_fd):
            os.close(fd)

    def _run(self) -> None:
        with suppress(EngineDeadError):  # the parent has left
            self.channel.send(Connected())
        serve(self.core, self.channel, self._shared)
        self.channel.close(0.0 if self._is_killed else 1.0)
        os.eventfd_write(self._death_fd, 1)


def serve_core(
    core: Any, folder: Path, shared: Backlog | None = None
) -> tuple[RemoteCore, ServingThread]:
    """Return the parent's side of a core that is served from a thread, and the thread."""
    address = f"unix://{folder}/engine"
    channel = Channel(FromEngine, address, is_listening=True)
    thread = ServingThread(core, address, shared)
    link = EngineLink(channel, thread)
    assert link.receive() == Connected()
    return RemoteCore(link), thread
