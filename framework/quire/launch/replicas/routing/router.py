"""Placement of requests on replicas, and what is known of each until its end; without any I/O.

A replica that is started again has another incarnation number. News of an earlier incarnation are
ignored, as are news of requests that have ended or were placed anew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from quire.engine.kv_cache.block_hash import BlockHasher
from quire.errors import RequestFailedError
from quire.launch.replicas.routing.prefix_index import PrefixIndex
from quire.launch.replicas.routing.replica_loads import ReplicaLoads
from quire.launch.replicas.routing.routing_policy import (
    CachedPrefix,
    Prefixes,
    RoutedPrompt,
    RoutingPolicy,
)
from quire.messages import EngineOutput, EngineRequest

FIRST_GUESS = 128.0  # tokens of a completion, before any has ended
GUESS_WEIGHT = 0.02  # of each completion that ends, in the mean


@dataclass(frozen=True, slots=True)
class Placement:
    """The replica of a request.

    Attributes:
        replica: Index of the replica.
        incarnation: Number of its starts until then.
        num_cached_tokens: Number of the prompt's tokens that it should have in its prefix cache.
    """

    replica: int
    incarnation: int
    num_cached_tokens: int


@dataclass(slots=True)
class _PlacedRequest:
    """A request that a replica has; `prompt_load` and `completion_load` are parts of its load."""

    request: EngineRequest
    placement: Placement
    hashes: list[bytes]
    prompt_load: float
    completion_load: float
    token_ids: list[int] = field(default_factory=list)  # of the completion


class Router:
    """Shares requests among replicas.

    Args:
        num_replicas: Number of replicas; all are down at first.
        hasher: Hasher of KV blocks; None if the replicas have no prefix cache.
        policy: Policy that chooses the replica.
        prefixes: What is known of the prefix caches; by default what each replica was sent.
    """

    def __init__(
        self,
        num_replicas: int,
        hasher: BlockHasher | None,
        policy: RoutingPolicy | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.loads = ReplicaLoads(num_replicas)
        self.prefixes: Prefixes = prefixes if prefixes is not None else PrefixIndex()
        self._policy = policy or CachedPrefix()
        self._hasher = hasher
        self._incarnations = [0] * num_replicas
        self._placed: list[dict[str, _PlacedRequest]] = [{} for _ in range(num_replicas)]
        self._mean_completion = FIRST_GUESS

    def extend(self) -> int:
        """Make room for one more replica, which is down; return its index."""
        self._incarnations.append(0)
        self._placed.append({})
        return self.loads.extend()

    def start(self, replica: int, num_blocks: int, now_s: float) -> int:
        """Add a replica with an empty cache.

        Args:
            replica: Index of the replica.
            num_blocks: Number of blocks of tokens that its prefix cache can hold.
            now_s: Current time.

        Returns:
            Its incarnation number.
        """
        self.stop(replica)
        self._incarnations[replica] += 1
        self.prefixes.start(replica, num_blocks)
        self.loads.start(replica, now_s)
        return self._incarnations[replica]

    def stop(self, replica: int) -> list[str]:
        """Remove a replica, and all that is known of it; return the ids of its requests."""
        self.loads.stop(replica)
        self.prefixes.forget(replica)
        placed, self._placed[replica] = self._placed[replica], {}
        return list(placed)

    @property
    def has_replica(self) -> bool:
        """Whether any replica takes requests."""
        return self.loads.num_up > 0

    def place(self, request: EngineRequest, now_s: float, replica: int | None = None) -> Placement:
        """Choose the replica of a request, and count it there until it ends.

        Args:
            request: The request.
            now_s: Current time.
            replica: Replica that has the request already; None: one is chosen.

        Raises:
            RuntimeError: No replica is up; the caller must check `has_replica` first.
        """
        if not self.has_replica:
            raise RuntimeError(f"request {request.request_id} has no replica to run on")
        hashes = self._hashes(request)
        num_readable = self._num_readable(request, hashes)
        size = 1 if self._hasher is None else self._hasher.block_size
        prompt = RoutedPrompt(len(request.token_ids), hashes[1 : 1 + num_readable], size)
        self.loads.warm_up(now_s)
        if replica is None:
            replica = self._policy.choose(prompt, self.loads, self.prefixes)
        num_cached = size * self.prefixes.num_held(replica, prompt.hashes)
        placement = Placement(replica, self._incarnations[replica], num_cached)
        self._count(request, placement, hashes)
        return placement

    def apply(
        self, replica: int, incarnation: int, outputs: Iterable[EngineOutput]
    ) -> list[EngineOutput]:
        """Apply the outputs of a step; return those that count."""
        if incarnation != self._incarnations[replica]:
            return []
        placed = self._placed[replica]
        current = [output for output in outputs if output.request_id in placed]
        for output in current:
            if output.finish_reason is None:
                self._advance(placed[output.request_id], output.token_ids)
            else:
                self._finish(placed.pop(output.request_id), output)
        return current

    def abort(self, replica: int, request_id: str) -> None:
        """Remove a request of a replica; nothing happens if it has ended."""
        if (placed := self._placed[replica].pop(request_id, None)) is not None:
            self._remove_load(placed)

    def reset_prefix_caches(self) -> None:
        """Forget all that the replicas were sent, as their caches are cleared."""
        self.prefixes.clear()

    def _hashes(self, request: EngineRequest) -> list[bytes]:
        """Return the parent hash and the hashes of the prompt's full blocks; [] without a cache."""
        if self._hasher is None:
            return []
        try:
            hashes = [self._hasher.start(request)]
            num_blocks = len(request.token_ids) // self._hasher.block_size
            self._hasher.extend(hashes, request.token_ids, num_blocks, request.media)
        except (RequestFailedError, OverflowError, TypeError):
            return []  # an adapter without a content hash, or no token ids: the engine refuses it
        return hashes

    def _num_readable(self, request: EngineRequest, hashes: Sequence[bytes]) -> int:
        """Return the number of blocks that a hit can cover: those before the last token."""
        if self._hasher is None or not hashes or request.params.prompt_logprobs is not None:
            return 0
        return (len(request.token_ids) - 1) // self._hasher.block_size

    def _count(self, request: EngineRequest, placement: Placement, hashes: list[bytes]) -> None:
        prompt_load = len(request.token_ids) - placement.num_cached_tokens
        completion_load = min(self._mean_completion, request.max_tokens)
        if request.companion is not None:  # it computes another prompt, and each token twice
            prompt_load += len(request.companion.token_ids)
            completion_load *= 2
        placed = _PlacedRequest(request, placement, hashes, prompt_load, completion_load)
        self._placed[placement.replica][request.request_id] = placed
        self.loads.add(placement.replica, prompt_load + completion_load)
        self.prefixes.touch(placement.replica, hashes[1:])

    def _advance(self, placed: _PlacedRequest, token_ids: Sequence[int]) -> None:
        """Count tokens of a completion; with the first ones the prompt is computed."""
        placed.token_ids += token_ids
        if placed.prompt_load and token_ids:
            self.loads.add(placed.placement.replica, -placed.prompt_load)
            placed.prompt_load = 0.0

    def _finish(self, placed: _PlacedRequest, output: EngineOutput) -> None:
        """Remove a request; the next turn of its conversation finds its completion in the cache."""
        self._advance(placed, output.token_ids)
        self._remove_load(placed)
        if output.finish_reason in ("error", "abort"):
            return
        num_generated = len(placed.token_ids)
        self._mean_completion += GUESS_WEIGHT * (num_generated - self._mean_completion)
        if self._hasher is None or not placed.hashes:
            return
        token_ids = placed.request.token_ids + placed.token_ids[:-1]  # the last is not computed
        num_blocks = len(token_ids) // self._hasher.block_size
        self._hasher.extend(placed.hashes, token_ids, num_blocks, placed.request.media)
        self.prefixes.touch(placed.placement.replica, placed.hashes[1:])

    def _remove_load(self, placed: _PlacedRequest) -> None:
        replica = placed.placement.replica
        self.loads.add(replica, -(placed.prompt_load + placed.completion_load))
