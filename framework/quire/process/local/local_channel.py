"""Channel to the engine on the same machine."""

import math
from collections.abc import Sequence
from typing import Any

from quire.process.hub import HubChannel
from quire.process.local.channel import Channel


class LocalChannel(HubChannel):
    """The connecting end of a hub of the same machine.

    Args:
        kind: Type of messages from the hub; any other message is an error.
        address: Address `unix://...` on which the hub listens.

    Raises:
        QuireError: No process listens there.
    """

    def __init__(self, kind: Any, address: str) -> None:
        self._channel = Channel(kind, address, is_listening=False)

    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""
        self._channel.watch(fd)

    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""
        self._channel.unwatch(fd)

    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until `receive` or a watched file descriptor has something, or until timeout."""
        return self._channel.wait(timeout_s)

    def send(self, message: Any) -> None:
        """Queue a message for the hub; raises as `HubChannel.send` does."""
        self._channel.send(message)

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the next message; raises as `HubChannel.receive` does."""
        return self._channel.take(math.inf if timeout_s is None else timeout_s)

    def close(self, linger_s: float = 0.0) -> None:
        """Close the channel, after a time for the hub to make room for what was sent."""
        self._channel.close(linger_s)
