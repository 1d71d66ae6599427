"""Several routers of one simulated cluster: what each knows of the caches, and what it receives.

They share the loads of the replicas, so that they differ in what they know of the caches alone. The
changes that replicas report arrive late, and some are lost. A router notices a lost one with the
next, asks for a snapshot, and keeps what arrives until then.
"""

import random
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial

from quire.cached_blocks import BatchOrder
from quire.cli.bench.cluster.virtual_replica import VirtualReplica
from quire.launch.replicas.routing.prefix_index import PrefixIndex
from quire.launch.replicas.routing.reported_prefixes import ReportedPrefixes
from quire.launch.replicas.routing.routing_policy import Prefixes
from quire.messages import BlocksStored, KVEventBatch

Later = Callable[[float, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the routers know of the prefix caches.

    Attributes:
        num_routers: Number of routers, each of which gets as many requests.
        has_events: Whether replicas report changes; else a router knows what it has sent.
        delay_s: Seconds until a change arrives; 0: with the step that makes it.
        loss: Fraction of the batches that are lost.
    """

    num_routers: int = 1
    has_events: bool = False
    delay_s: float = 0.0
    loss: float = 0.0


ONE_ROUTER = Knowledge()


class RouterViews:
    """The knowledge of several routers, one of which acts at a time.

    Args:
        knowledge: What they know.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        make = ReportedPrefixes if knowledge.has_events else PrefixIndex
        self.views = [make() for _ in range(knowledge.num_routers)]
        self._acting: Prefixes = self.views[0]

    def act(self, router: int) -> None:
        """Let a router act from now on."""
        self._acting = self.views[router]

    def start(self, replica: int, num_blocks: int) -> None:
        """Add an empty replica."""
        for view in self.views:
            view.start(replica, num_blocks)

    def forget(self, replica: int) -> None:
        """Remove a replica."""
        for view in self.views:
            view.forget(replica)

    def clear(self) -> None:
        """Remove all blocks."""
        for view in self.views:
            view.clear()

    def touch(self, replica: int, hashes: Sequence[bytes]) -> None:
        """Record the use of a prefix."""
        self._acting.touch(replica, hashes)

    def levels(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, Set[int]]]:
        """Yield numbers of blocks with their holders, the longest first."""
        return self._acting.levels(hashes)

    def num_held(self, replica: int, hashes: Sequence[bytes]) -> int:
        """Return the number of leading blocks that a replica holds."""
        return self._acting.num_held(replica, hashes)


class EventDelivery:
    """The way of the changes to one router.

    Args:
        view: Knowledge of the router.
        knowledge: Delay and loss.
        later: Function that calls another one after some seconds.
        engine_of: Function that returns a replica; None: it is down.
        seed: Seed of the losses.
    """

    def __init__(
        self,
        view: ReportedPrefixes,
        knowledge: Knowledge,
        later: Later,
        engine_of: Callable[[int], VirtualReplica | None],
        seed: str,
    ) -> None:
        self._view, self._knowledge, self._later = view, knowledge, later
        self._engine_of = engine_of
        self._losses = random.Random(seed)
        self._order = BatchOrder()
        self._kept: dict[int, list[KVEventBatch]] = {}  # while a snapshot is waited for

    def send(self, batch: KVEventBatch, after_s: float) -> None:
        """Send a batch on its way, once its step has ended.

        Args:
            batch: Changes of a replica.
            after_s: Seconds until then.
        """
        if not self._knowledge.delay_s:
            self._take(batch)
        elif self._losses.random() >= self._knowledge.loss:
            self._later(after_s + self._knowledge.delay_s, partial(self._take, batch))

    def restart(self, replicas: Sequence[int]) -> None:
        """Forget everything, and ask for snapshots, as a router that starts."""
        self._order = BatchOrder()
        self._view.clear()
        for replica in replicas:
            self._ask(replica)

    def _take(self, batch: KVEventBatch) -> None:
        """Take a batch, or keep it until the snapshot before it is there."""
        replica = batch.replica
        if not self._is_current(batch):
            return
        if replica in self._kept:
            self._kept[replica].append(batch)
            return
        match self._order.take(batch):
            case "gap":
                self._ask(replica)
            case "next" | "first":
                self._view.apply(replica, batch.events)

    def _ask(self, replica: int) -> None:
        """Ask for a snapshot, and keep what arrives until it is there."""
        if replica in self._kept:
            return  # asked already
        self._kept[replica] = []
        self._later(self._knowledge.delay_s, partial(self._answer, replica))

    def _answer(self, replica: int) -> None:
        engine = self._engine_of(replica)
        snapshot = None if engine is None else engine.snapshot(replica)
        self._later(self._knowledge.delay_s, partial(self._take_snapshot, replica, snapshot))

    def _take_snapshot(self, replica: int, snapshot: KVEventBatch | None) -> None:
        kept = self._kept.pop(replica)
        if snapshot is not None and self._is_current(snapshot):
            self._order.take(snapshot)
            stored = [event for event in snapshot.events if isinstance(event, BlocksStored)]
            self._view.replace(replica, [block for event in stored for block in event.hashes])
        for batch in kept:
            self._take(batch)

    def _is_current(self, batch: KVEventBatch) -> bool:
        """Whether a batch is of an engine that still runs."""
        engine = self._engine_of(batch.replica)
        return engine is not None and engine.incarnation == batch.incarnation
