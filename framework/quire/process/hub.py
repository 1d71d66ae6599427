"""Hub: one listening socket for several processes, each of which has a `HubChannel`.

    process 0 --\
    process 1 ----> hub        the hub gives each peer an id
    process 2 --/

A broadcast that is interrupted, as by Ctrl-C, is completed by the next call, and no peer misses or
repeats a message. On one machine the socket is a file (`local`); between machines it is a TCP port,
for the holders of the launch's key only (`network`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

Peer = bytes


class Hub(ABC):
    """The listening end for several processes; sending never blocks, and no message is dropped.

    Attributes:
        address: Address at which the hub listens.
    """

    address: str

    @abstractmethod
    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""

    @abstractmethod
    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until a message arrives or a watched file descriptor is readable, or until timeout.

        It also returns when a peer on another machine may have been lost, until `lost` is called.

        Returns:
            The watched file descriptors that are readable.
        """

    def lost(self) -> Sequence[Peer]:
        """Return the peers on other machines whose connection has ended since the last call.

        They have sent a message before. The last of their messages may still be to be taken.
        """
        return ()

    @abstractmethod
    def send(self, peers: Iterable[Peer], message: Any) -> None:
        """Queue one message for some peers, encoded once; raises as `encode` does.

        Raises:
            EngineDeadError: A peer has disconnected; the message of the error has its id.
        """

    @abstractmethod
    def take(self, timeout_s: float = 0.0) -> tuple[Peer, Any] | None:
        """Return the next message with its sender; None if none arrives within the timeout.

        Raises:
            EngineDeadError: A peer sent an invalid message.
        """

    def drain(self, timeout_s: float) -> None:
        """Wait until what was sent needs no more calls to reach the peers."""
        del timeout_s

    @abstractmethod
    def close(self, linger_s: float = 0.0) -> None:
        """Close the socket. May be called twice.

        Args:
            linger_s: Time for the peers to read the messages that were sent.
        """


class HubChannel(ABC):
    """The connecting end of a hub, in one of the processes; a lost connection is final."""

    @abstractmethod
    def watch(self, fd: int) -> None:
        """Make `wait` also return when a file descriptor becomes readable."""

    @abstractmethod
    def unwatch(self, fd: int) -> None:
        """Watch a file descriptor no longer."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> Sequence[int]:
        """Block until `receive` or a watched file descriptor has something, or until timeout.

        Returns:
            The watched file descriptors that are readable.
        """

    @abstractmethod
    def send(self, message: Any) -> None:
        """Queue a message for the hub; raises as `encode` does.

        Raises:
            EngineDeadError: The connection was lost.
        """

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for the next message.

        Returns:
            The message; None if none arrives within the timeout.

        Raises:
            EngineDeadError: The hub sent an invalid message, or the connection was lost; messages
                that came before are returned first.
        """

    @abstractmethod
    def close(self, linger_s: float = 0.0) -> None:
        """Close the channel.

        Args:
            linger_s: Time for the hub to read the messages that were sent.
        """
