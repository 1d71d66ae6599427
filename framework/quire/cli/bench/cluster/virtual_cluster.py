"""Replicas, router and load in one virtual time: arrivals, steps, deaths and restarts.

As in `ReplicatedCore`, a request of a dead replica runs again, once, if it has no token yet.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from quire.cli.bench.cluster.cluster_load import ClusterLoad, Conversation, LoadGenerator
from quire.cli.bench.cluster.router_views import ONE_ROUTER, EventDelivery, Knowledge, RouterViews
from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.cluster.virtual_replica import ROOT, VirtualReplica
from quire.cli.bench.null_engine import BLOCK_SIZE, EngineParts
from quire.engine.kv_cache.block_hash import BlockHasher
from quire.launch.replicas.routing.reported_prefixes import ReportedPrefixes
from quire.launch.replicas.routing.router import Router
from quire.launch.replicas.routing.routing_policy import RoutingPolicy
from quire.messages import EngineOutput, EngineRequest

HERD_S = 1.0  # time after a restart in which a replica's requests are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """Sizes of a cluster.

    Attributes:
        num_replicas: Number of replicas.
        num_blocks: Number of KV blocks of each that requests can own.
        num_deaths: Number of deaths, spread over the arrivals.
        restart_s: Seconds from a death until the replica is up again.
        step_time: Duration of steps.
        seed: Seed of load and deaths.
    """

    num_replicas: int
    num_blocks: int
    num_deaths: int
    restart_s: float = 10.0
    step_time: StepTime = field(default_factory=StepTime)
    seed: int = 0


@dataclass(slots=True)
class Tracked:
    """A request of the simulation; `num_runs` counts its placements."""

    request: EngineRequest
    conversation: Conversation
    router: int
    arrival_s: float
    first_token_s: float | None = None
    num_tokens: int = 0
    num_runs: int = 0
    end: str | None = None  # "finished" or "failed"


@dataclass(slots=True)
class ClusterTrace:
    """Events of a run, to be counted afterwards.

    Attributes:
        requests: All requests, by id.
        num_prompt_tokens: Tokens of all prompts that began to run.
        num_cached_tokens: Those of them that were found in a prefix cache.
        num_unexpected: Outputs for requests that had ended or were never sent.
        worst_excess: Largest excess of a chosen replica's load over the lowest one, beyond the
            tokens that the router expected in its cache.
        herds: Of each restart: placements on the replica in the time after it, and its fair share.
        imbalances: Largest load less the mean one, in tokens, at intervals.
        end_s: Virtual time of the end.
    """

    requests: dict[str, Tracked] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_unexpected: int = 0
    worst_excess: float = 0.0
    herds: list[tuple[int, float]] = field(default_factory=list)
    imbalances: list[float] = field(default_factory=list)
    end_s: float = 0.0


class VirtualCluster:
    """A cluster that runs a load to its end.

    Args:
        shape: Sizes of the cluster.
        load: Load to run.
        parts: Parts of the engines.
        policy: Routing policy.
        knowledge: What the routers know of the caches.
    """

    def __init__(
        self,
        shape: ClusterShape,
        load: ClusterLoad,
        parts: EngineParts,
        policy: RoutingPolicy,
        knowledge: Knowledge = ONE_ROUTER,
    ) -> None:
        self.trace = ClusterTrace()
        self._shape, self._load, self._parts, self._knowledge = shape, load, parts, knowledge
        self._generator = LoadGenerator(load, shape.seed)
        self._arrivals = self._generator.conversations()
        hasher = BlockHasher(BLOCK_SIZE, ROOT)
        self._routers = RouterViews(knowledge)
        self._router = Router(shape.num_replicas, hasher, policy, self._routers)
        self._deliveries = [
            EventDelivery(view, knowledge, self._at, self._replica, f"{shape.seed} {number}")
            for number, view in enumerate(self._routers.views)
            if isinstance(view, ReportedPrefixes)
        ]
        self._shares = random.Random(f"routers {shape.seed}")
        self._replicas: list[VirtualReplica | None] = [None] * shape.num_replicas
        self._incarnations = [0] * shape.num_replicas
        self._is_stepping = [False] * shape.num_replicas
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now_s = 0.0
        self._is_over = False
        self._watched: Counter[int] = Counter()  # placements on replicas after a restart
        self._num_placed = 0
        self._held: list[Tracked] = []

    def run(self) -> ClusterTrace:
        """Run the load to its end; return what happened."""
        for replica in range(self._shape.num_replicas):
            self._start(replica)
        self._plan_deaths()
        self._plan_router_restart()
        self._next_conversation()
        self._at(1.0, self._sample)
        while self._events:
            self._now_s, _, event = heapq.heappop(self._events)
            event()
        self.trace.end_s = self._now_s
        return self.trace

    # -- load ------------------------------------------------------------------------------------

    def _next_conversation(self) -> None:
        arrival_s, conversation = next(self._arrivals)
        self._at(arrival_s - self._now_s, lambda: self._begin(conversation))

    def _begin(self, conversation: Conversation) -> None:
        self._send(conversation)
        if not self._is_over:
            self._next_conversation()

    def _send(self, conversation: Conversation) -> None:
        """Send the next message of a conversation, unless all requests were sent."""
        request = self._generator.next_request(conversation)
        if request is None:
            self._is_over = True
            return
        router = self._shares.randrange(self._knowledge.num_routers)
        tracked = Tracked(request, conversation, router, self._now_s)
        self.trace.requests[request.request_id] = tracked
        self._place(tracked)

    # -- replicas --------------------------------------------------------------------------------

    def _plan_deaths(self) -> None:
        rng = random.Random(f"deaths {self._shape.seed}")
        duration_s = self._load.num_requests / self._load.rate
        for _ in range(self._shape.num_deaths):
            replica = rng.randrange(self._shape.num_replicas)
            after_s = duration_s * rng.uniform(0.2, 0.7)
            self._at(after_s, partial(self._kill, replica))

    def _plan_router_restart(self) -> None:
        """Let one of several routers start anew in the middle, if it can ask what is cached."""
        if len(self._deliveries) > 1:
            middle_s = 0.5 * self._load.num_requests / self._load.rate
            self._at(middle_s, lambda: self._deliveries[0].restart(self._replicas_up()))

    def _replicas_up(self) -> list[int]:
        return [index for index, replica in enumerate(self._replicas) if replica is not None]

    def _start(self, replica: int) -> None:
        shape = self._shape
        self._replicas[replica] = VirtualReplica(
            self._parts,
            shape.num_blocks,
            shape.step_time,
            reports_events=self._knowledge.has_events,
        )
        self._is_stepping[replica] = False
        self._incarnations[replica] = self._router.start(replica, shape.num_blocks, self._now_s)
        held, self._held = self._held, []
        for tracked in held:
            self._place(tracked)

    def _restart(self, replica: int) -> None:
        self._start(replica)
        self._watched[replica] = 0
        before = self._num_placed
        self._at(HERD_S, lambda: self._end_watch(replica, before))

    def _end_watch(self, replica: int, num_placed_before: int) -> None:
        """Record the share of a restarted replica in the requests since its restart."""
        num_up = self._router.loads.num_up
        fair_share = (self._num_placed - num_placed_before) / max(1, num_up)
        self.trace.herds.append((self._watched.pop(replica, 0), fair_share))

    def _kill(self, replica: int) -> None:
        """Kill a replica; run its requests again or fail them."""
        if self._replicas[replica] is None:
            return
        self._replicas[replica] = None
        for request_id in self._router.stop(replica):
            tracked = self.trace.requests[request_id]
            if tracked.num_tokens or tracked.num_runs > 1:
                self._end(tracked, "failed")
            else:
                self._place(tracked)
        self._at(self._shape.restart_s, lambda: self._restart(replica))

    # -- requests --------------------------------------------------------------------------------

    def _place(self, tracked: Tracked) -> None:
        """Send a request to a replica."""
        if not self._router.has_replica:
            self._held.append(tracked)
            return
        loads = self._router.loads
        loads.warm_up(self._now_s)
        self._routers.act(tracked.router)
        before = [loads.counted(replica) for replica in range(self._shape.num_replicas)]
        placement = self._router.place(tracked.request, self._now_s)
        replica = placement.replica
        excess = before[replica] - min(before) - placement.num_cached_tokens
        self.trace.worst_excess = max(self.trace.worst_excess, excess)
        tracked.num_runs += 1
        self._num_placed += 1
        if replica in self._watched:
            self._watched[replica] += 1
        self._engine(replica).add(tracked.request)
        if not self._is_stepping[replica]:
            self._step(replica)

    def _step(self, replica: int) -> None:
        """Begin a step of a replica; its outputs arrive when it has ended."""
        seconds, outputs = self._engine(replica).step()
        for batch in outputs.kv_events:
            named = msgspec.structs.replace(batch, replica=replica)
            for delivery in self._deliveries:
                delivery.send(named, seconds)
        self._is_stepping[replica] = True
        incarnation = self._incarnations[replica]
        self._at(seconds, lambda: self._end_step(replica, incarnation, outputs.outputs))

    def _end_step(self, replica: int, incarnation: int, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            if (tracked := self.trace.requests.get(output.request_id)) is not None:
                self._routers.act(tracked.router)
            for current in self._router.apply(replica, incarnation, [output]):
                self._take(current)
        if self._incarnations[replica] != incarnation or self._replicas[replica] is None:
            return  # it died meanwhile
        self._is_stepping[replica] = False
        if self._engine(replica).core.has_work():
            self._step(replica)

    def _take(self, output: EngineOutput) -> None:
        tracked = self.trace.requests.get(output.request_id)
        if tracked is None or tracked.end is not None:
            self.trace.num_unexpected += 1
            return
        if tracked.first_token_s is None and output.token_ids:
            tracked.first_token_s = self._now_s
            self.trace.num_prompt_tokens += len(tracked.request.token_ids)
            self.trace.num_cached_tokens += output.num_cached_tokens
        tracked.num_tokens += len(output.token_ids)
        if output.finish_reason is not None:
            self._end(tracked, "failed" if output.error else "finished")

    def _end(self, tracked: Tracked, how: str) -> None:
        tracked.end = how
        conversation = tracked.conversation
        if how == "finished" and conversation.turns_left:
            pause_s = self._generator.answer(conversation, tracked.request)
            if not self._is_over:
                self._at(pause_s, lambda: self._send(conversation))

    # -- time ------------------------------------------------------------------------------------

    def _sample(self) -> None:
        """Record the imbalance, every second until all requests were sent."""
        loads = self._router.loads
        up = [replica for replica in range(self._shape.num_replicas) if loads.is_up(replica)]
        tokens = [loads.tokens(replica) for replica in up]
        if tokens:
            self.trace.imbalances.append(max(tokens) - sum(tokens) / len(tokens))
        if not self._is_over:
            self._at(1.0, self._sample)

    def _at(self, after_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now_s + after_s, next(self._order), event))

    def _replica(self, replica: int) -> VirtualReplica | None:
        return self._replicas[replica]

    def _engine(self, replica: int) -> VirtualReplica:
        engine = self._replicas[replica]
        if engine is None:
            raise RuntimeError(f"replica {replica} is down and was sent a request")
        return engine
