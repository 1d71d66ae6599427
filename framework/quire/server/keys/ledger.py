"""What is counted for one account: its usage, its running requests, and what its limits have left.

A server with one process counts in its own memory, one with several in memory that all of them
share, so that a limit holds for all together whichever process a request reaches.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import msgspec


class KeyUsage(msgspec.Struct):
    """Counts of one account since the start of the server.

    Attributes:
        num_requests: Requests that were let in, of those that limits count.
        num_refused: Requests that a limit of the key refused.
        num_prompt_tokens: Tokens of prompts, cached ones included.
        num_cached_tokens: Tokens of prompts that were in the prefix cache.
        num_completion_tokens: Tokens of completions.
    """

    num_requests: int = 0
    num_refused: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int = 0


class Level(Protocol):
    """How much of a token bucket is gone, and when that was known."""

    debt: float
    then_s: float


class Ledger(Protocol):
    """The counts of one account. What is changed is changed while `lock` is held."""

    @property
    def usage(self) -> KeyUsage:
        """The counts since the start."""

    @property
    def num_running(self) -> int:
        """Number of requests at present."""

    @property
    def requests(self) -> Level:
        """What is gone of the requests per minute."""

    @property
    def tokens(self) -> Level:
        """What is gone of the tokens per minute."""

    @property
    def keeps_levels(self) -> bool:
        """Whether what is gone stays gone when the limits change."""

    def lock(self) -> AbstractContextManager[object]:
        """Return a context in which no other process changes these counts."""

    def add(self, more: KeyUsage) -> None:
        """Add to the counts."""

    def run(self, change: int) -> None:
        """Add to the number of requests at present."""


_NO_LOCK = nullcontext()


class LocalLevel:
    """A level in the memory of this process; full at first."""

    __slots__ = ("debt", "then_s")

    def __init__(self) -> None:
        self.debt = self.then_s = 0.0


class LocalLedger:
    """Counts in the memory of this process; used in one event loop."""

    keeps_levels = False

    def __init__(self) -> None:
        self.usage = KeyUsage()
        self.num_running = 0
        self.requests: Level = LocalLevel()
        self.tokens: Level = LocalLevel()

    def lock(self) -> AbstractContextManager[object]:
        """Return a context without a lock: there is one event loop."""
        return _NO_LOCK

    def add(self, more: KeyUsage) -> None:
        """Add to the counts."""
        own = self.usage
        own.num_requests += more.num_requests
        own.num_refused += more.num_refused
        own.num_prompt_tokens += more.num_prompt_tokens
        own.num_cached_tokens += more.num_cached_tokens
        own.num_completion_tokens += more.num_completion_tokens

    def run(self, change: int) -> None:
        """Add to the number of requests at present."""
        self.num_running += change
