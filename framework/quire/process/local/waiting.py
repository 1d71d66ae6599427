"""Wait for several connections and file descriptors together."""

import math
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Source(Protocol):
    """What can be waited for."""

    def events(self) -> Mapping[int, int]:
        """Return the file descriptors to poll, and for which events."""

    def handle(self, fd: int) -> bool:
        """Handle the events of one of them; return whether there is something to receive."""


def wait_for(
    sources: Iterable[Source], fds: Sequence[int], timeout_s: float | None
) -> Sequence[int]:
    """Wait until a source has something to receive or a file descriptor is readable.

    Args:
        sources: Sources.
        fds: File descriptors.
        timeout_s: Seconds to wait at most; None: no limit.

    Returns:
        The file descriptors that are readable.
    """
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    sources = tuple(sources)
    while True:
        poll, owners = _polled(sources, fds)
        ready = [fd for fd, _ in poll.poll(_milliseconds(deadline))]
        found = [fd for fd in ready if fd in fds]
        received = [owners[fd].handle(fd) for fd in ready if fd in owners]
        if found or any(received) or time.monotonic() >= deadline:
            return found


def taken(take: Callable[[], T | None], source: Source, timeout_s: float) -> T | None:
    """Return what `take` finds, called again as long as it finds nothing, until the timeout.

    Args:
        take: Takes a message of the source, if one is there.
        source: Source that `take` takes from.
        timeout_s: Seconds to wait at most; may be infinite.
    """
    found = take()
    deadline = time.monotonic() + timeout_s
    while found is None and (left_s := deadline - time.monotonic()) > 0:
        wait_for([source], (), left_s)
        found = take()
    return found


def _polled(sources: Iterable[Source], fds: Iterable[int]) -> tuple[select.poll, dict[int, Source]]:
    poll, owners = select.poll(), {}
    for fd in fds:
        poll.register(fd, select.POLLIN)
    for source in sources:
        for fd, events in source.events().items():
            poll.register(fd, events)
            owners[fd] = source
    return poll, owners


def _milliseconds(deadline: float) -> int | None:
    """Return the time until a deadline, rounded up."""
    if deadline == math.inf:
        return None
    return max(0, math.ceil((deadline - time.monotonic()) * 1000))
