"""Start of an engine process: its launch, and the wait until its engine is ready for requests."""

import os
from collections.abc import Mapping
from typing import Any, Self

from quire.errors import EngineDeadError
from quire.launch.engine_process.engine_link import EXIT_GRACE_S, EngineLink
from quire.launch.engine_process.engine_wire import (
    Connected,
    EngineConfig,
    FromEngine,
    Ready,
    Refused,
)
from quire.messages import Started
from quire.process.children.child_process import ChildProcess, SocketFolder
from quire.process.children.python_child import python_arguments
from quire.process.ipc import encode
from quire.process.local.channel import Channel

MODULE = "quire.launch.engine_process.entry"


class EngineStart:
    """An engine process that starts; if it fails to, the process is ended.

    Args:
        link: Connection to the process.
        folder: Folder of its socket, removed once it has connected.
    """

    def __init__(self, link: EngineLink, folder: SocketFolder) -> None:
        self.link = link
        self._folder = folder
        self._is_connected = False

    @classmethod
    def launch(
        cls, environment: Mapping[str, str] | None = None, exit_grace_s: float = EXIT_GRACE_S
    ) -> Self:
        """Launch a process; it imports its code while the caller goes on, and is then configured.

        Args:
            environment: Variables to set, beside those of this process.
            exit_grace_s: Time for a process that failed to exit by itself, before it is killed.

        Raises:
            QuireError: The process cannot be launched.
        """
        folder = SocketFolder()
        try:
            channel = Channel(FromEngine, folder.address, is_listening=True)
        except BaseException:
            folder.remove()
            raise
        try:
            arguments = python_arguments(MODULE, [str(os.getpid()), str(folder.path)])
            process = ChildProcess(arguments, None, environment)
        except BaseException:
            channel.close()
            folder.remove()
            raise
        return cls(EngineLink(channel, process, exit_grace_s), folder)

    @property
    def address(self) -> str:
        """Address of the socket to which the process connects."""
        return self._folder.address

    def configure(self, config: EngineConfig) -> None:
        """Let the process start its engine; to be called once."""
        self.link.configure(encode(config))

    def wait(self) -> Started:
        """Wait until the engine is ready for requests.

        Raises:
            QuireError: The engine cannot start.
            EngineDeadError: The process ended.
        """
        try:
            while (started := self._take(self.link.receive())) is None:
                pass
        except BaseException as error:
            self.close(f"the engine did not start: {error}")
            raise
        return started

    def poll(self) -> Started | None:
        """Return what `wait` returns if the engine is ready, else None; raises as `wait` does."""
        try:
            while (message := self.link.poll()) is not None:
                if (started := self._take(message)) is not None:
                    return started
        except BaseException as error:
            self.close(f"the engine did not start: {error}")
            raise
        return None

    def close(self, reason: str) -> None:
        """End the process."""
        self.link.close(EngineDeadError(reason))
        self._folder.remove()

    def _take(self, message: Any) -> Started | None:
        """Take a message of the start-up; return what the last one says.

        Raises:
            QuireError: The engine cannot start; its process was ended.
        """
        match message:
            case Ready() if self._is_connected:
                return message.started
            case Connected() if not self._is_connected:
                self._is_connected = True
                self._folder.remove()
            case Refused():
                self.link.close(EngineDeadError("the engine did not start"), self.link.exit_grace_s)
                raise message.error.error()
            case _:
                self.link.die(EngineDeadError(f"the engine sent {message!r} unexpectedly"))
        return None
