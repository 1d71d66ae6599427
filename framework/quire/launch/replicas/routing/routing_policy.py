"""Policies that choose the replica of a request: in turn, by load, by load and cached prefix."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from quire.launch.replicas.routing.replica_loads import ReplicaLoads


class Prefixes(Protocol):
    """What is known of the replicas' prefix caches; `PrefixIndex` describes the methods."""

    def start(self, replica: int, num_blocks: int) -> None:
        """Add an empty replica."""

    def forget(self, replica: int) -> None:
        """Remove a replica."""

    def clear(self) -> None:
        """Remove all blocks."""

    def touch(self, replica: int, hashes: Sequence[bytes]) -> None:
        """Record the use of a prefix."""

    def levels(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, Set[int]]]:
        """Yield numbers of blocks with their holders, the longest first."""

    def num_held(self, replica: int, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks that a replica holds."""


@dataclass(frozen=True, slots=True)
class RoutedPrompt:
    """The properties of a prompt that a policy reads.

    Attributes:
        num_tokens: Number of its tokens.
        hashes: Hashes of the blocks that a prefix hit can cover.
        block_size: Number of tokens per block.
    """

    num_tokens: int
    hashes: Sequence[bytes] = ()
    block_size: int = 1


class RoutingPolicy(ABC):
    """Chooses the replica of a request; at least one is up."""

    @abstractmethod
    def choose(self, prompt: RoutedPrompt, loads: ReplicaLoads, prefixes: Prefixes) -> int:
        """Return the replica that is sent a prompt."""


class RoundRobin(RoutingPolicy):
    """Each replica in turn."""

    def choose(self, prompt: RoutedPrompt, loads: ReplicaLoads, prefixes: Prefixes) -> int:
        """Return the next replica that is up."""
        del prompt, prefixes
        return loads.next_up()


class LeastLoaded(RoutingPolicy):
    """The replica with the fewest tokens to compute."""

    def choose(self, prompt: RoutedPrompt, loads: ReplicaLoads, prefixes: Prefixes) -> int:
        """Return the least loaded replica."""
        del prompt, prefixes
        return loads.least()


class CachedPrefix(RoutingPolicy):
    """The replica with the fewest tokens to compute once it has the request.

        cost(replica) = its load + tokens of the prompt that it does not hold

    So a hit counts as much as the work that it saves, and a miss goes by load alone. The load of
    the chosen replica exceeds the lowest one by at most the tokens of the hit.
    """

    def choose(self, prompt: RoutedPrompt, loads: ReplicaLoads, prefixes: Prefixes) -> int:
        """Return the replica of the lowest cost."""
        best = loads.least()
        lowest, size = loads.counted(best), prompt.block_size
        best_cost = lowest - size * prefixes.num_held(best, prompt.hashes)
        for num_blocks, holders in prefixes.levels(prompt.hashes):
            if lowest - size * num_blocks >= best_cost:
                break  # no replica that holds so little can cost less
            holder = loads.least_of(holders)
            cost = loads.counted(holder) - size * num_blocks
            if cost < best_cost:
                best, best_cost = holder, cost
        return best
