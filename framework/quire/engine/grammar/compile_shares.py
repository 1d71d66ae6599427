"""Compile time that clients have had lately, so that one cannot keep the others waiting.

The time of a client halves every `HALF_LIFE_S` seconds: a client that has waited long enough is
like a new one.
"""

import math
import time

HALF_LIFE_S = 10.0
MAX_CLIENTS = 1_024


class CompileShares:
    """Recent compile time of each client, in seconds."""

    def __init__(self) -> None:
        self._shares: dict[str, tuple[float, float]] = {}  # client -> seconds, and when counted

    def __getitem__(self, client: str) -> float:
        seconds, counted_s = self._shares.get(client, (0.0, 0.0))
        return seconds * math.exp2((counted_s - time.monotonic()) / HALF_LIFE_S)

    def add(self, client: str, seconds: float) -> None:
        """Count compile time of a client; beyond the limit of clients the smallest is forgotten."""
        self._shares[client] = (self[client] + seconds, time.monotonic())
        if len(self._shares) > MAX_CLIENTS:
            del self._shares[min(self._shares, key=self.__getitem__)]
