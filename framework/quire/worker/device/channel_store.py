"""torch's rendezvous store over the exchange of a launch, so that no port is opened for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from quire.worker.device.group_place import Exchange


class ChannelStore(dist.Store):  # type: ignore[misc,name-defined]
    """Store of one group's addresses.

    Args:
        exchange: Exchange of the launch.
        prefix: Text before each key, unique among the groups of the launch.
        timeout_s: Time limit of reads that have none of their own.
    """

    def __init__(self, exchange: Exchange, prefix: str, timeout_s: float) -> None:
        super().__init__()
        self._exchange = exchange
        self._prefix = prefix
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Publish a value."""
        self._exchange.set(self._name(key), value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """Wait for a value, and return it."""
        return self._exchange.get(self._name(key), self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait for values."""
        seconds = self._timeout_s if timeout is None else timeout.total_seconds()
        deadline = time.monotonic() + seconds
        for key in keys:
            self._exchange.get(self._name(key), max(0.0, deadline - time.monotonic()))

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all values are published."""
        try:
            self.wait(keys, timedelta(0))
        except TimeoutError:
            return False
        return True

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"
