"""Several channels, and file descriptors beside them, that one thread waits for together."""

from collections.abc import Iterable

import zmq

from quire.process.ipc import Channel


class ChannelSet:
    """The channels of several processes.

    Args:
        fds: File descriptors that end a wait, too.
    """

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self._fds = tuple(fds)
        self._channels: tuple[Channel, ...] = ()
        self._poller = zmq.Poller()
        self.replace(())

    def replace(self, channels: Iterable[Channel]) -> None:
        """Wait for these channels from now on, instead of those before."""
        if self._poller.sockets and (channels := tuple(channels)) == self._channels:
            return
        self._channels = tuple(channels)
        self._poller = zmq.Poller()
        for fd in self._fds:
            self._poller.register(fd, zmq.POLLIN)
        for channel in self._channels:
            channel.register(self._poller)

    def wait(self, timeout_s: float | None = None) -> set[int]:
        """Wait for a message on any channel, or for a file descriptor of a channel or of the set.

        Args:
            timeout_s: Seconds to wait at most; None: no limit.

        Returns:
            The descriptors of the set that are readable.
        """
        timeout_ms = None if timeout_s is None else max(0, int(timeout_s * 1000) + 1)
        return {fd for fd, _ in self._poller.poll(timeout_ms) if fd in self._fds}
