"""Several channels, and file descriptors beside them, that one thread waits for together."""

from collections.abc import Iterable

from quire.process.local.channel import Channel
from quire.process.local.waiting import wait_for


class ChannelSet:
    """The channels of several processes.

    Args:
        fds: File descriptors that end a wait, too.
    """

    def __init__(self, fds: Iterable[int] = ()) -> None:
        self._fds = tuple(fds)
        self._channels: tuple[Channel, ...] = ()

    def replace(self, channels: Iterable[Channel]) -> None:
        """Wait for these channels from now on, instead of those before."""
        self._channels = tuple(channels)

    def wait(self, timeout_s: float | None = None) -> set[int]:
        """Wait for a message on any channel, or for a file descriptor of a channel or of the set.

        Args:
            timeout_s: Seconds to wait at most; None: no limit.

        Returns:
            The descriptors of the set that are readable.
        """
        watched = [fd for channel in self._channels for fd in channel.watched]
        found = wait_for(self._channels, [*self._fds, *watched], timeout_s)
        return {fd for fd in found if fd in self._fds}
