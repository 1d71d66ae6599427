"""Whether the server takes new requests, and how many it is still answering.

Readiness flips before anything stops: while it drains, the server goes on listening, finishes what
runs and tells newcomers to come back.
"""

import asyncio


class Lifecycle:
    """The state that the guard, the health routes and the shutdown share; one event loop."""

    def __init__(self) -> None:
        self.is_draining = False
        self.num_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Count a request in."""
        self.num_in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """Count a request out."""
        self.num_in_flight -= 1
        if self.num_in_flight == 0:
            self._idle.set()

    def drain(self) -> None:
        """Take no new requests from now on."""
        self.is_draining = True

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait for the last request in flight; return whether all of them finished in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
