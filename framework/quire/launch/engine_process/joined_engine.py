"""The process of an engine that another process has started: this one can see its end, no more."""

import os

from quire.errors import EngineDeadError, QuireError
from quire.launch.engine_process.engine_link import EngineLink
from quire.launch.engine_process.engine_wire import Connected, FromEngine
from quire.launch.engine_process.remote_core import RemoteCore
from quire.process.local.channel import Channel


class JoinedEngine:
    """The process of an engine of another process.

    Args:
        pid: Its process id.

    Raises:
        EngineDeadError: There is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._death_fd = os.pidfd_open(pid)
        except OSError as error:
            raise EngineDeadError(f"the engine process {pid} is gone: {error}") from error

    @classmethod
    def join(cls, address: str, pid: int) -> RemoteCore:
        """Connect to an engine that has a socket open for this process.

        Raises:
            EngineDeadError: It is dead.
        """
        process = cls(pid)  # first: an engine that listens after that had this id before
        try:
            channel = Channel(FromEngine, address, is_listening=False)
        except QuireError as error:
            raise EngineDeadError(f"the engine does not listen: {error}") from error
        link = EngineLink(channel, process)
        link.send(Connected())
        return RemoteCore(link)

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when the engine dies."""
        return self._death_fd

    def configure(self, config: bytes) -> None:
        """Do nothing: its parent has configured the engine."""
        del config

    def end(self, timeout_s: float) -> str:
        """Leave the engine as it is; return a description of its end, for people."""
        del timeout_s
        return "has ended, or left this front end; the log says why"

    def kill(self) -> bool:
        """Return False: the engine belongs to another process."""
        return False
