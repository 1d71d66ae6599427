"""The grammars of one engine, within limits, and the processes in which they are matched.

A grammar is identified by its params, backend included. Each compiles in a process of its own. One
that its backend can send, and that took little time and memory, moves to a process that all such
grammars share, with one message a step; any other one stays where it is. An idle grammar stays
compiled for a while, so that the next request with the same schema starts at once.
"""

import hashlib
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.engine.grammar.fork_server_client import GrammarForkServer
from quire.engine.grammar.grammar_link import GrammarLink
from quire.engine.grammar.grammar_wire import Compiled, Sendable
from quire.sampling_params import StructuredOutputsParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """Limits of grammars.

    Attributes:
        timeout_s: Maximum CPU time to compile a grammar, in seconds.
        turn_s: Time after which a grammar that compiles makes way for one that has had less.
        max_waiting: Maximum number of grammars of named clients that wait to be compiled.
        max_wait_s: Maximum time, as estimated, that such a grammar waits until it is begun.
        max_failures: Maximum number of grammars whose errors are kept, to be given at once.
        memory_bytes: Maximum number of bytes that a grammar may add to its process, compiled index
            included.
        max_compiling: Maximum number of grammars that compile at the same time; others wait.
        max_grammars: Maximum number of processes with a grammar of their own, those that compile
            included; other grammars wait.
        max_idle: Maximum number of idle grammars that keep a process of their own, the most
            recently used.
        max_bytes: Maximum number of bytes of all compiled grammars together: beyond it, idle ones
            are evicted, and new ones wait for those in use.
        max_shared: Maximum number of grammars in the shared process, idle ones included.
        shared_cpu_s: CPU time to compile up to which a grammar may move to the shared process.
        shared_bytes: Memory added by compiling up to which it may.
        shared_packed_bytes: Size of what is sent up to which it may.
        shared_memory_bytes: Maximum number of bytes that all grammars may add to the shared
            process, matchers included.
    """

    timeout_s: float = 10.0
    turn_s: float = 0.1
    max_waiting: int = 256
    max_wait_s: float = 15.0
    memory_bytes: int = 2**30
    max_failures: int = 256
    max_compiling: int = 2
    max_grammars: int = 64
    max_idle: int = 16
    max_bytes: int = 2**30
    max_shared: int = 256
    shared_cpu_s: float = 0.1
    shared_bytes: int = 32 * 2**20
    shared_packed_bytes: int = 256 * 2**10
    shared_memory_bytes: int = 2**31


@dataclass(slots=True, eq=False)
class PooledGrammar:
    """One grammar, and the process that compiles or matches it.

    Attributes:
        number: Id of the grammar in its process.
        link: Connection to the process.
        num_users: Number of requests that use the grammar.
        num_bytes: Number of bytes that the compiled grammar takes.
        sendable: What the shared process has loaded, kept in case it must be restarted.
        started_s: Time at which it began to compile, by `time.monotonic`.
    """

    number: int
    link: GrammarLink
    num_users: int = 0
    num_bytes: int = 0
    sendable: Sendable | None = None
    started_s: float = field(default_factory=time.monotonic)


class GrammarPool:
    """Grammars by their params, the least recently used first."""

    def __init__(
        self, fork_server: GrammarForkServer, backends: Sequence[str], limits: GrammarLimits
    ) -> None:
        self._fork_server = fork_server
        self._backends = tuple(backends)
        self._limits = limits
        self._grammars: dict[bytes, PooledGrammar] = {}
        self._shared: GrammarLink | None = None
        self._unshared: dict[bytes, None] = {}  # digests of those that failed there, oldest first
        self._num_started = 0

    def __getitem__(self, key: bytes) -> PooledGrammar:
        return self._grammars[key]

    def __contains__(self, key: bytes) -> bool:
        return key in self._grammars

    def acquire(self, key: bytes, params: StructuredOutputsParams) -> PooledGrammar | None:
        """Return a grammar for one more user; start to compile it if necessary.

        Returns:
            None if it would have to be compiled and the limits do not allow it now.

        Raises:
            LinkLostError: The process cannot be started.
        """
        found = self._grammars.get(key)
        if found is not None and found.link.is_in_turn and not found.num_users:
            self.remove(key)  # an interrupt stopped the turn, and the process is about to end
        grammar = self._grammars.pop(key, None)
        if grammar is None:
            if not self._make_room():
                return None
            grammar = self._start(params)
        self._grammars[key] = grammar
        grammar.num_users += 1
        return grammar

    def finish_compile(self, key: bytes) -> None:
        """Receive a compile result. A cheap grammar that can be sent moves to the shared process.

        Raises:
            LinkLostError: The grammar could not be compiled, or the shared process not started.
        """
        grammar = self._grammars[key]
        compiled = grammar.link.receive_compiled()
        grammar.num_bytes = compiled.num_bytes
        sendable = compiled.sendable
        if sendable is None or not self._is_cheap(compiled, sendable):
            return
        if self._may_share(key, sendable):
            self._share(grammar, sendable)

    def isolate(self, key: bytes, params: StructuredOutputsParams) -> GrammarLink:
        """Start to compile a grammar again, in a process that it keeps; raises as `acquire` does.

        The new process is in the turn that the users of the grammar wait for.
        """
        grammar = self._grammars[key]
        self._leave(grammar)
        new = self._start(params)
        new.link.is_in_turn = True
        grammar.number, grammar.link = new.number, new.link
        return new.link

    def restart_shared(self, keys: Sequence[bytes]) -> GrammarLink:
        """Start the shared process again and load grammars that it had; raises NotStartedError.

        The new process is in the turn that the users of the grammars wait for.
        """
        self._shared = link = self._start_shared()
        link.is_in_turn = True
        for grammar in (self._grammars[key] for key in keys):
            if grammar.sendable is not None:
                link.load(grammar.number, grammar.sendable)
            grammar.link = link
        return link

    def keep_unshared(self, key: bytes) -> None:
        """Remember that a grammar must not move to the shared process again."""
        self._unshared[digest(key)] = None
        for oldest in list(self._unshared)[: -self._limits.max_failures]:
            del self._unshared[oldest]

    def preemptible(self) -> list[tuple[bytes, float]]:
        """Return the grammars that may make way for others, and how long each has compiled.

        Empty if a grammar can be started without. Where two may compile, the oldest one keeps its
        place, so that slow grammars end as well.
        """
        compiling = [
            (grammar.started_s, key)
            for key, grammar in self._grammars.items()
            if grammar.link.is_compiling
        ]
        if len(compiling) < self._limits.max_compiling:
            return []
        num_kept = int(self._limits.max_compiling > 1)
        now = time.monotonic()
        return [(key, now - started_s) for started_s, key in sorted(compiling)[num_kept:]]

    def end_interrupted(self) -> None:
        """End the processes whose last turn was begun and not ended; called before a step.

        Their masks would mix with the step's. A grammar in use stays, and its next turn fails.
        """
        links = {id(grammar.link): grammar.link for grammar in self._grammars.values()}
        if self._shared is not None:
            links[id(self._shared)] = self._shared
        for link in links.values():
            if link.is_in_turn:
                self.lose(link)

    def lose(self, link: GrammarLink) -> list[bytes]:
        """End a process, and remove its idle grammars; return those in use, to be started again.

        With a shared process, an earlier or later one is lost, too: only one may be at work.
        """
        lost, links = [], {id(link): link}
        if link.is_shared and self._shared is not None:
            links[id(self._shared)], self._shared = self._shared, None
        for key, grammar in self._grammars.items():
            if grammar.link is link or (link.is_shared and grammar.link.is_shared):
                lost.append(key)
                links[id(grammar.link)] = grammar.link
        for each in links.values():
            self._end(each)
        for key in lost:
            if not self._grammars[key].num_users:
                del self._grammars[key]
        return [key for key in lost if key in self._grammars]

    def release(self, key: bytes) -> None:
        """Remove one user. Without users, a grammar that is compiling or in a turn is removed.

        The response to an interrupted turn would be taken for the response to the next one. A
        grammar that must leave the shared process is removed, too.
        """
        grammar = self._grammars[key]
        grammar.num_users -= 1
        link = grammar.link
        must_leave = link.is_shared and digest(key) in self._unshared
        if not grammar.num_users and (link.is_compiling or link.is_in_turn or must_leave):
            self.remove(key)
        self._evict_idle(self._limits.max_idle)
        self.evict_to_fit()

    def evict_to_fit(self) -> None:
        """Evict idle grammars, the least recently used first, until all fit in `max_bytes`."""
        for key in [key for key, grammar in self._grammars.items() if not grammar.num_users]:
            if self._num_bytes <= self._limits.max_bytes:
                return
            self.remove(key)

    def remove(self, key: bytes) -> None:
        """Remove a grammar, and end its process if it is in none with others."""
        self._leave(self._grammars.pop(key))

    def poll_compiling(self, timeout_s: float) -> list[bytes]:
        """Return the grammars that compiled, died or are overdue; wait for one if there is none."""
        compiling = {
            key: grammar.link
            for key, grammar in self._grammars.items()
            if grammar.link.is_compiling and not grammar.link.is_in_turn
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
        for grammar in self._grammars.values():
            grammar.link.close()
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        self._grammars.clear()
        self._fork_server.close()

    # --- the shared process ------------------------------------------------------------------

    def _is_cheap(self, compiled: Compiled, sendable: Sendable) -> bool:
        return (
            compiled.cpu_s <= self._limits.shared_cpu_s
            and compiled.num_bytes <= self._limits.shared_bytes
            and len(sendable.packed) <= self._limits.shared_packed_bytes
        )

    def _may_share(self, key: bytes, sendable: Sendable) -> bool:
        """Return whether the shared process can load a grammar; make room for it there."""
        if sendable.backend not in self._backends or digest(key) in self._unshared:
            return False
        max_idle = self._limits.max_shared - 1 - self._num_used(is_shared=True)
        self._evict(self._idle(is_shared=True), max_idle)
        return self._num(is_shared=True) < self._limits.max_shared

    def _share(self, grammar: PooledGrammar, sendable: Sendable) -> None:
        """Move a compiled grammar to the shared process, which loads it with the next turn."""
        if self._shared is not None and self._shared.is_in_turn:  # an interrupt stopped the turn
            self.lose(self._shared)
        if self._shared is None:
            self._shared = self._start_shared()
        self._shared.load(grammar.number, sendable)
        grammar.sendable = sendable
        own, grammar.link = grammar.link, self._shared
        self._end(own)

    def _leave(self, grammar: PooledGrammar) -> None:
        """Remove a grammar from its process."""
        if grammar.link.is_shared:
            grammar.link.unload(grammar.number)
        else:
            self._end(grammar.link)

    # --- limits ------------------------------------------------------------------------------

    @property
    def _num_bytes(self) -> int:
        return sum(grammar.num_bytes for grammar in self._grammars.values())

    def _num(self, is_shared: bool) -> int:
        return sum(grammar.link.is_shared is is_shared for grammar in self._grammars.values())

    def _idle(self, is_shared: bool) -> list[bytes]:
        return [
            key
            for key, grammar in self._grammars.items()
            if grammar.link.is_shared is is_shared and not grammar.num_users
        ]

    def _num_used(self, is_shared: bool) -> int:
        return self._num(is_shared) - len(self._idle(is_shared))

    def _make_room(self) -> bool:
        num_compiling = sum(grammar.link.is_compiling for grammar in self._grammars.values())
        if num_compiling >= self._limits.max_compiling:
            return False
        num_used = self._num_used(is_shared=False)
        if num_used < self._limits.max_grammars:
            self._evict_idle(self._limits.max_grammars - 1 - num_used)
        self.evict_to_fit()
        return (
            self._num(is_shared=False) < self._limits.max_grammars
            and self._num_bytes <= self._limits.max_bytes
        )

    def _evict_idle(self, num_kept: int) -> None:
        self._evict(self._idle(is_shared=False), num_kept)

    def _evict(self, idle: Sequence[bytes], num_kept: int) -> None:
        for key in idle[: max(0, len(idle) - max(0, num_kept))]:
            self.remove(key)

    # --- processes ---------------------------------------------------------------------------

    def _start(self, params: StructuredOutputsParams) -> PooledGrammar:
        number = self._next_number()
        backends = (str(params.backend),) if params.names_backend else self._backends
        timeout_s = self._limits.timeout_s
        link = GrammarLink.start(self._fork_server, number, backends, params, timeout_s)
        return PooledGrammar(number, link)

    def _start_shared(self) -> GrammarLink:
        return GrammarLink.start_shared(self._fork_server, self._next_number(), self._backends)

    def _next_number(self) -> int:
        self._num_started += 1
        return self._num_started

    def _end(self, link: GrammarLink) -> None:
        self._fork_server.kill(link.number)
        if link.is_in_turn:
            link.wait_until_gone()
        link.close()


def digest(key: bytes) -> bytes:
    """Return a short name of a grammar."""
    return hashlib.sha256(key).digest()
