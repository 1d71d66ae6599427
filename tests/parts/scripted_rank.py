"""Ranks without a model at the other end of a hub: threads that answer by a script."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from quire.errors import EngineDeadError
from quire.interfaces.executor import WorkerGrid, WorkerProcess
from quire.launch.workers.ranks.rank_link import RankLink
from quire.launch.workers.ranks.rank_links import RankLinks
from quire.launch.workers.worker_wire import FromWorker, Joined, Stop, ToWorker
from quire.process.hub import HubChannel
from quire.process.local.local_channel import LocalChannel
from quire.process.local.local_hub import LocalHub

CHOICES = ["quire 1", "torch 2"]

Script = Callable[[HubChannel, Any], None]


class ThreadProcess(WorkerProcess):
    """A rank in a thread; it "dies" when the test says so, or when it is ended."""

    node = "a machine"

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        self.how = "exited"
        self.exit_s = 0.0  # time that it needs to exit by itself
        self.patience_s: list[float] = []
        self._has_ended = False

    def fileno(self) -> int | None:
        return None if self._has_ended else self.read_fd

    def die(self, how: str = "was killed by SIGKILL") -> None:
        self.how = how
        if not self._has_ended:
            os.write(self._write_fd, b"x")

    def kill(self) -> None: ...

    def end(self, timeout_s: float) -> str:
        self.patience_s.append(timeout_s)
        time.sleep(min(self.exit_s, timeout_s))
        if not self._has_ended:
            self._has_ended = True
            os.close(self.read_fd)
            os.close(self._write_fd)
        return self.how


class ScriptedRanks:
    """Ranks of a grid, connected to a hub; each answers messages by a script.

    Args:
        address: Address for the hub.
        grid: Grid of the ranks.
    """

    def __init__(self, address: str, grid: WorkerGrid) -> None:
        self.address = address
        self.grid = grid
        self.processes = [ThreadProcess() for _ in range(grid.size)]
        self.received: list[list[Any]] = [[] for _ in range(grid.size)]
        self._threads: list[threading.Thread] = []
        self._is_stopping = False
        self.hub = LocalHub(FromWorker, address)
        ranks = [RankLink(rank, grid, process) for rank, process in enumerate(self.processes)]
        self.links = RankLinks(self.hub, ranks)

    def run(self, *scripts: Script, choices: list[list[str]] | None = None) -> None:
        """Start a thread for each rank; the last script is that of all further ranks."""
        for rank in range(self.grid.size):
            script = scripts[min(rank, len(scripts) - 1)]
            lines = CHOICES if choices is None else choices[rank]
            thread = threading.Thread(target=self._serve, args=(rank, script, lines))
            thread.start()
            self._threads.append(thread)

    def _serve(self, rank: int, script: Script, choices: list[str]) -> None:
        channel = LocalChannel(ToWorker, self.address)
        channel.send(Joined(rank, "a machine", 1000 + rank, choices, 0))
        with suppress(EngineDeadError):  # the links are closed before a rank has answered
            self._follow(rank, channel, script)
        channel.close(0.1)

    def _follow(self, rank: int, channel: HubChannel, script: Script) -> None:
        while not self._is_stopping:
            message = channel.receive(0.02)
            if isinstance(message, Stop):
                break
            if message is not None:
                self.received[rank].append(message)
                script(channel, message)

    def stop(self) -> None:
        """End the threads and the links."""
        self._is_stopping = True
        for thread in self._threads:
            thread.join(5)
        self.links.close(EngineDeadError("the test is over"))
