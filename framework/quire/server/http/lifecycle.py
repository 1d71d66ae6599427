"""State of the server: whether it drains, and the number of requests in flight.

While the server drains it still listens: running requests finish, and new ones get 503 with
`Retry-After`.
"""

import asyncio


class Lifecycle:
    """State shared by the guard, the health routes and the shutdown, in one event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        self.num_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count a request that begins."""
        self.num_in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request that ends."""
        self.num_in_flight -= 1
        if self.num_in_flight == 0:
            self._idle.set()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.is_draining = True

    async def wait_until_idle(self) -> None:
        """Wait for the last request in flight."""
        await self._idle.wait()
