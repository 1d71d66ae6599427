"""Placement of prompts on replicas that come and go, by the router of `--data-parallel-size`.

Ray Serve names a replica by an id that no later one has, so what is known of a replica ends with
it. Here each replica has an index of the router, which another one may have afterwards.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from quire.launch.replicas.routing.prefix_index import PrefixIndex
from quire.launch.replicas.routing.reported_prefixes import ReportedPrefixes
from quire.launch.replicas.routing.router import Router
from quire.ray.cache_report import CacheChange, routing_hasher
from quire.ray.prompt_reader import PromptTokens, as_request

FOREIGN_TOKENS = 128.0  # of a request that another router has sent, about which nothing is known


class ReplicaFacts(msgspec.Struct, frozen=True):
    """What a replica is, once it is ready.

    Attributes:
        block_size: Number of tokens of a KV block; 0: it has no prefix cache.
        num_blocks: Number of blocks of tokens that its prefix cache can hold.
        reports_changes: Whether it reports changes of its prefix cache.
    """

    block_size: int = 0
    num_blocks: int = 0
    reports_changes: bool = False


class ReplicaLoad(msgspec.Struct, frozen=True):
    """What a replica does, as it reports from time to time.

    Attributes:
        num_requests: Number of prompts whose completions it has not ended.
        num_resets: Number of times that its prefix cache was cleared.
        changes: Changes of its prefix cache, if it reports them.
    """

    num_requests: int = 0
    num_resets: int = 0
    changes: list[CacheChange] = []


class ServeRouting:
    """What one request router knows of the replicas, and where its requests are.

    Args:
        clock: Function that returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._router: Router | None = None  # from the first replica on, which has the block size
        self._index_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._free: list[int] = []
        self._facts: dict[str, ReplicaFacts] = {}
        self._loads: dict[str, ReplicaLoad] = {}
        self._foreign: dict[str, float] = {}
        self._open: dict[str, tuple[str, PromptTokens]] = {}  # replica and prompt by request
        self._num_open: dict[str, int] = {}
        self._last_change: dict[str, int] = {}  # number of the last change that was taken
        self._read: dict[str, Mapping[str, Any]] = {}  # the last report as it came

    def update(self, replicas: Mapping[str, ReplicaFacts]) -> None:
        """Add the replicas that are new, and forget those that are gone with their requests."""
        for name in self._index_of.keys() - replicas.keys():
            self._remove(name)
        for name in sorted(replicas.keys() - self._index_of.keys()):
            self._add(name, replicas[name])

    def read(self, name: str, stats: Mapping[str, Any]) -> None:
        """Take a report as Serve passes it on, which it does again with each request.

        One that was read is not decoded again: it may have the names of all blocks of a cache.
        """
        if name in self._index_of and stats != self._read.get(name):
            self._read[name] = stats
            self.report(name, msgspec.convert(stats, ReplicaLoad))

    def report(self, name: str, load: ReplicaLoad) -> None:
        """Take the load that a replica reports: it has requests of other routers, too."""
        if name not in self._index_of or load == self._loads[name]:
            return
        if load.num_resets != self._loads[name].num_resets:
            self._forget_prefixes(name)
        self._loads[name] = load
        self._take_changes(name, load.changes)
        num_foreign = max(0, load.num_requests - self._num_open[name])
        self._set_foreign(name, num_foreign * FOREIGN_TOKENS)

    def place(self, request_id: str, prompt: PromptTokens) -> list[str]:
        """Choose the replica of a request, and count it there until `end`.

        Returns:
            The chosen replica, then the others, the least loaded first.
        """
        self.end(request_id)
        order = self._by_load()
        if order:
            index = self._known_router.place(as_request(request_id, prompt), self._clock()).replica
            chosen = self._name_of[index]
            self._count(request_id, chosen, prompt)
            order.sort(key=lambda name: name != chosen)  # stable
        return order

    def move(self, request_id: str, name: str) -> None:
        """Count a request on the replica that has taken it; nothing happens if it is there."""
        found = self._open.get(request_id)
        if found is None or found[0] == name or name not in self._index_of:
            return
        self.end(request_id)
        request = as_request(request_id, found[1])
        self._known_router.place(request, self._clock(), self._index_of[name])
        self._count(request_id, name, found[1])

    def end(self, request_id: str, name: str | None = None) -> None:
        """Count a request no longer.

        Args:
            request_id: The request; nothing happens if it is unknown.
            name: Replica where it has ended; if it is on another one meanwhile, nothing happens.
        """
        found = self._open.get(request_id)
        if found is None or name not in (None, found[0]):
            return
        del self._open[request_id]
        self._num_open[found[0]] -= 1
        self._known_router.abort(self._index_of[found[0]], request_id)

    def load(self, name: str) -> float:
        """Return the tokens that a replica has still to compute, as far as is known."""
        return self._known_router.loads.tokens(self._index_of[name])

    @property
    def _known_router(self) -> Router:
        if self._router is None:
            raise RuntimeError("no replica was known yet")
        return self._router

    def _add(self, name: str, facts: ReplicaFacts) -> None:
        if self._router is None:
            hasher = routing_hasher(facts.block_size) if facts.block_size else None
            prefixes = ReportedPrefixes() if facts.reports_changes else PrefixIndex()
            self._router = Router(0, hasher, prefixes=prefixes)
        index = self._free.pop() if self._free else self._router.extend()
        self._index_of[name], self._name_of[index] = index, name
        self._facts[name], self._loads[name] = facts, ReplicaLoad()
        self._foreign[name], self._num_open[name], self._last_change[name] = 0.0, 0, 0
        self._router.start(index, facts.num_blocks, self._clock())

    def _remove(self, name: str) -> None:
        index = self._index_of.pop(name)
        for request_id in self._known_router.stop(index):
            del self._open[request_id]
        self._free.append(index)
        del self._name_of[index], self._facts[name], self._loads[name]
        del self._foreign[name], self._num_open[name], self._last_change[name]
        self._read.pop(name, None)

    def _forget_prefixes(self, name: str) -> None:
        prefixes, index = self._known_router.prefixes, self._index_of[name]
        prefixes.forget(index)
        prefixes.start(index, self._facts[name].num_blocks)

    def _take_changes(self, name: str, changes: Sequence[CacheChange]) -> None:
        """Take changes in their order; after a gap, wait for the whole contents."""
        prefixes, index = self._known_router.prefixes, self._index_of[name]
        if not isinstance(prefixes, ReportedPrefixes):
            return
        for change in changes:
            last = self._last_change[name]
            if change.is_whole and change.number > last:
                prefixes.replace(index, change.stored)
            elif change.number == last + 1:
                _apply(prefixes, index, change)
            else:
                continue
            self._last_change[name] = change.number

    def _set_foreign(self, name: str, num_tokens: float) -> None:
        self._known_router.loads.add(self._index_of[name], num_tokens - self._foreign[name])
        self._foreign[name] = num_tokens

    def _count(self, request_id: str, name: str, prompt: PromptTokens) -> None:
        self._open[request_id] = name, prompt
        self._num_open[name] += 1

    def _by_load(self) -> list[str]:
        index_of = self._index_of
        return sorted(index_of, key=lambda name: self._known_router.loads.counted(index_of[name]))


def _apply(prefixes: ReportedPrefixes, replica: int, change: CacheChange) -> None:
    if change.was_cleared:
        prefixes.note_cleared(replica)
    prefixes.note_removed(replica, change.removed)
    prefixes.note_stored(replica, change.stored)
