"""Connections without a request, in the order in which they give way to new ones.

A server that has all the connections it may have must still accept: a client with work, and a
supervisor with a health check. Idle connections give way first, whose clients expect that to happen
(RFC 9112, 9.5), then those that have never sent anything; in each group the oldest.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class IdleConnections(Generic[T]):
    """Idle connections, by age."""

    def __init__(self) -> None:
        self._rested: dict[T, None] = {}  # in order of insertion
        self._fresh: dict[T, None] = {}

    def add_fresh(self, connection: T) -> None:
        """Add a connection that has just been accepted."""
        self._fresh[connection] = None

    def add(self, connection: T) -> None:
        """Add a connection whose last response is sent."""
        self._rested[connection] = None

    def discard(self, connection: T) -> None:
        """Remove a connection, if it is idle: a request begins, or it ends."""
        self._rested.pop(connection, None)
        self._fresh.pop(connection, None)

    def pop(self) -> T | None:
        """Remove the connection that gives way next, and return it; None if there is none."""
        for group in (self._rested, self._fresh):
            for connection in group:
                del group[connection]
                return connection
        return None
