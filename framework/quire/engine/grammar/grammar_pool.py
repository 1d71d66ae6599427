"""The grammar processes of one engine, within limits: one per grammar, shared by requests.

A grammar is identified by its params, backend included. An idle grammar stays compiled for a while,
so that the next request with the same schema starts at once.
"""

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass

from quire.engine.grammar.fork_server_client import GrammarForkServer
from quire.engine.grammar.grammar_link import GrammarLink
from quire.sampling_params import StructuredOutputsParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """Limits of grammars.

    Attributes:
        timeout_s: Maximum CPU time to compile a grammar, in seconds.
        turn_s: Time after which a grammar that compiles makes way for one that has had less.
        max_failures: Maximum number of grammars whose errors are kept, to be given at once.
        memory_bytes: Maximum number of bytes that a grammar may add to its process, compiled index
            included.
        max_compiling: Maximum number of grammars that compile at the same time; others wait.
        max_grammars: Maximum number of different grammars in use at the same time; others wait.
        max_idle: Maximum number of idle grammars that stay compiled, the most recently used.
        max_bytes: Maximum number of bytes of all compiled grammars together: beyond it, idle ones
            are evicted, and new ones wait for those in use.
    """

    timeout_s: float = 10.0
    turn_s: float = 0.1
    memory_bytes: int = 2**30
    max_failures: int = 256
    max_compiling: int = 2
    max_grammars: int = 64
    max_idle: int = 16
    max_bytes: int = 2**30


class GrammarPool:
    """Links to grammar processes by grammar, the least recently used first."""

    def __init__(
        self, fork_server: GrammarForkServer, backends: Sequence[str], limits: GrammarLimits
    ) -> None:
        self._fork_server = fork_server
        self._backends = tuple(backends)
        self._limits = limits
        self._links: dict[bytes, GrammarLink] = {}
        self._num_started = 0

    def __getitem__(self, key: bytes) -> GrammarLink:
        return self._links[key]

    def acquire(self, key: bytes, params: StructuredOutputsParams) -> GrammarLink | None:
        """Return the link to a grammar's process for one more user; start it if necessary.

        Returns:
            None if it would have to be started and the limits do not allow it now.

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
        """Restart the process of a grammar; raises as `acquire` does."""
        old = self._links[key]
        self._end(old)
        link = self._links[key] = self._start(params)
        link.num_users = old.num_users
        link.is_in_turn = True  # the turn that its users are waiting for
        return link

    def preemptible(self) -> list[tuple[bytes, float]]:
        """Return the grammars that may make way for others, and how long each has compiled.

        Empty if a grammar can be started without. Where two may compile, the oldest one keeps its
        place, so that slow grammars end as well.
        """
        compiling = [
            (link.started_s, key) for key, link in self._links.items() if link.is_compiling
        ]
        if len(compiling) < self._limits.max_compiling:
            return []
        num_kept = int(self._limits.max_compiling > 1)
        now = time.monotonic()
        return [(key, now - started_s) for started_s, key in sorted(compiling)[num_kept:]]

    def end_interrupted(self) -> None:
        """End the processes whose last turn was begun and not ended; called before a step.

        Their masks would mix with the step's. A link in use stays, and its next turn fails.
        """
        for key, link in list(self._links.items()):
            if link.is_in_turn:
                self._end(link)
                if not link.num_users:
                    del self._links[key]

    def release(self, key: bytes) -> None:
        """Remove one user. Without users, a grammar that is compiling or in a turn is removed.

        The response to an interrupted turn would be taken for the response to the next one.
        """
        link = self._links[key]
        link.num_users -= 1
        if (link.is_compiling or link.is_in_turn) and not link.num_users:
            self.remove(key)
        self._evict_idle(self._limits.max_idle)
        self.evict_to_fit()

    def evict_to_fit(self) -> None:
        """Evict idle grammars, the least recently used first, until all fit in `max_bytes`."""
        for key in [key for key, link in self._links.items() if not link.num_users]:
            if self._num_bytes <= self._limits.max_bytes:
                return
            self.remove(key)

    @property
    def _num_bytes(self) -> int:
        return sum(link.num_bytes for link in self._links.values())

    def remove(self, key: bytes) -> None:
        """Remove a grammar and end its process."""
        self._end(self._links.pop(key))

    def poll_compiling(self, timeout_s: float) -> list[bytes]:
        """Return the grammars that compiled, died or are overdue; wait for one if there is none."""
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
        return [key for key, link in compiling.items() if link.fileno() in ready or link.is_overdue]

    def close(self) -> None:
        """End all processes."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._fork_server.close()

    def _start(self, params: StructuredOutputsParams) -> GrammarLink:
        self._num_started += 1
        backends = (str(params.backend),) if params.names_backend else self._backends
        timeout_s = self._limits.timeout_s
        return GrammarLink.start(self._fork_server, self._num_started, backends, params, timeout_s)

    def _make_room(self) -> bool:
        num_compiling = sum(link.is_compiling for link in self._links.values())
        if num_compiling >= self._limits.max_compiling:
            return False
        num_used = sum(link.num_users > 0 for link in self._links.values())
        if num_used < self._limits.max_grammars:
            self._evict_idle(self._limits.max_grammars - 1 - num_used)
        self.evict_to_fit()
        return (
            len(self._links) < self._limits.max_grammars
            and self._num_bytes <= self._limits.max_bytes
        )

    def _evict_idle(self, num_kept: int) -> None:
        idle = [key for key, link in self._links.items() if not link.num_users]
        for key in idle[: max(0, len(idle) - max(0, num_kept))]:
            self.remove(key)

    def _end(self, link: GrammarLink) -> None:
        self._fork_server.kill(link.number)
        if link.is_in_turn:
            link.wait_until_gone()
        link.close()
