"""The grammar processes of one engine, within their limits: one a grammar, shared by requests.

A grammar is told apart by its params, backend included. One that nobody uses any more stays
compiled for a while, so that the next request with the same schema starts at once.
"""

import select
import time
from dataclasses import dataclass

from quire.engine.grammar.fork_server import GrammarForkServer
from quire.engine.grammar.grammar_link import GrammarLink
from quire.sampling_params import StructuredOutputsParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """What grammars may take.

    Attributes:
        timeout_s: Seconds that one may take to compile.
        memory_bytes: Memory that one may add to its process, compiled index included.
        max_compiling: How many compile at the same time; the others wait.
        max_grammars: How many different ones may be in use at the same time; the others wait.
        max_idle: How many stay compiled that nobody uses, the latest used ones.
        max_bytes: Memory that all of them may take together, as far as it is known: beyond it,
            unused ones end, and new ones wait for those in use.
    """

    timeout_s: float = 10.0
    memory_bytes: int = 2**30
    max_compiling: int = 2
    max_grammars: int = 64
    max_idle: int = 16
    max_bytes: int = 2**30


class GrammarPool:
    """Links to grammar processes by grammar, the least recently used first."""

    def __init__(self, fork_server: GrammarForkServer, backend: str, limits: GrammarLimits) -> None:
        self._fork_server = fork_server
        self._backend = backend
        self._limits = limits
        self._links: dict[bytes, GrammarLink] = {}
        self._num_started = 0

    def __getitem__(self, key: bytes) -> GrammarLink:
        return self._links[key]

    def join(self, key: bytes, params: StructuredOutputsParams) -> GrammarLink | None:
        """Return the link to a grammar's process for one more user; start it if need be.

        Returns:
            None if it would have to be started and there is no room for it now.

        Raises:
            LinkLostError: The process cannot be started.
        """
        link = self._links.pop(key, None)
        if link is None:
            if not self._make_room():
                return None
            link = self._start(params)
        self._links[key] = link
        link.num_users += 1
        return link

    def replace(self, key: bytes, params: StructuredOutputsParams) -> GrammarLink:
        """Start the process of a grammar again; raises as `join` does."""
        old = self._links[key]
        self._end(old)
        link = self._links[key] = self._start(params)
        link.num_users = old.num_users
        link.is_in_turn = True  # the one that its users wait for
        return link

    def end_broken_off(self) -> None:
        """End the processes whose last turn was begun and not ended; to be called before a step.

        Their masks would mix with the step's. A link that is in use stays, and is found lost.
        """
        for key, link in list(self._links.items()):
            if link.is_in_turn:
                self._end(link)
                if not link.num_users:
                    del self._links[key]

    def leave(self, key: bytes) -> None:
        """Count one user less. A grammar that still compiles then has no reason to go on.

        Nor has one whose turn was broken off: what it says next would answer nobody.
        """
        link = self._links[key]
        link.num_users -= 1
        if (link.is_compiling or link.is_in_turn) and not link.num_users:
            self.cut(key)
        self._drop_idle(self._limits.max_idle)
        self.make_small()

    def make_small(self) -> None:
        """End unused grammars, the least recently used first, until all fit in the memory."""
        for key in [key for key, link in self._links.items() if not link.num_users]:
            if self._num_bytes <= self._limits.max_bytes:
                return
            self.cut(key)

    @property
    def _num_bytes(self) -> int:
        return sum(link.num_bytes for link in self._links.values())

    def cut(self, key: bytes) -> None:
        """End the process of a grammar."""
        self._end(self._links.pop(key))

    def settled(self, timeout_s: float) -> list[bytes]:
        """Return which grammars compiled, died or are late; wait so long for the first of them."""
        compiling = {
            key: link
            for key, link in self._links.items()
            if link.is_compiling and not link.is_in_turn
        }
        if not compiling:
            return []
        until = min([time.monotonic() + timeout_s, *(link.deadline for link in compiling.values())])
        poller = select.poll()
        for link in compiling.values():
            poller.register(link.fileno(), select.POLLIN)
        ready = {fd for fd, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000)}
        return [key for key, link in compiling.items() if link.fileno() in ready or link.is_late]

    def close(self) -> None:
        """End all processes."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._fork_server.close()

    def _start(self, params: StructuredOutputsParams) -> GrammarLink:
        self._num_started += 1
        backend = params.backend or self._backend
        timeout_s = self._limits.timeout_s
        return GrammarLink.start(self._fork_server, self._num_started, backend, params, timeout_s)

    def _make_room(self) -> bool:
        num_compiling = sum(link.is_compiling for link in self._links.values())
        if num_compiling >= self._limits.max_compiling:
            return False
        num_used = sum(link.num_users > 0 for link in self._links.values())
        if num_used < self._limits.max_grammars:
            self._drop_idle(self._limits.max_grammars - 1 - num_used)
        self.make_small()
        return (
            len(self._links) < self._limits.max_grammars
            and self._num_bytes <= self._limits.max_bytes
        )

    def _drop_idle(self, num_kept: int) -> None:
        idle = [key for key, link in self._links.items() if not link.num_users]
        for key in idle[: max(0, len(idle) - max(0, num_kept))]:
            self.cut(key)

    def _end(self, link: GrammarLink) -> None:
        self._fork_server.fell(link.number)
        if link.is_in_turn:
            link.wait_until_gone()
        link.close()
