"""A replica in virtual time: the real engine core, scheduler and KV cache around an idle runner."""

import msgspec

from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.null_engine import EngineParts, IdleRunner, IdleWorker
from quire.config import SchedulerSettings
from quire.engine.core import EngineCore
from quire.engine.grammar.grammars import NoGrammars
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import NULL_BLOCKS, fixed_plan
from quire.engine.scheduling.scheduler import Scheduler
from quire.messages import EngineOutputs, EngineRequest, KVEventBatch, ReadKVSnapshot

ROOT = b""  # of the block hashes, so that they are those of the router
MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 2048


class VirtualReplica:
    """One engine, whose steps take no time but say how long they would.

    Args:
        parts: Parts of the engine.
        num_blocks: Number of KV blocks that requests can own.
        step_time: Duration of its steps.
        reports_events: Whether it reports changes of its prefix cache.
    """

    def __init__(
        self,
        parts: EngineParts,
        num_blocks: int,
        step_time: StepTime,
        *,
        reports_events: bool = False,
    ) -> None:
        settings = SchedulerSettings(
            max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS
        )
        plan = fixed_plan(parts.specs, num_blocks + NULL_BLOCKS)
        kv = KVCacheManager(
            plan,
            root=ROOT,
            max_step_tokens=MAX_NUM_BATCHED_TOKENS,
            reports_events=reports_events,
        )
        self._runner = IdleRunner(MAX_NUM_SEQS)
        self._step_time = step_time
        self.core = EngineCore(
            Scheduler(settings, kv, parts.policy()), IdleWorker(), self._runner, NoGrammars()
        )

    @property
    def incarnation(self) -> str:
        """Name of this engine in what it reports; none other has it."""
        journal = self.core.scheduler.kv.journal
        return "" if journal is None else journal.incarnation

    def snapshot(self, replica: int) -> KVEventBatch | None:
        """Return what the prefix cache holds; None if changes are not reported.

        Args:
            replica: Index of this replica.
        """
        found: list[KVEventBatch] = self.core.control(ReadKVSnapshot())
        return msgspec.structs.replace(found[0], replica=replica) if found else None

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        self.core.add(request)

    def step(self) -> tuple[float, EngineOutputs]:
        """Run a step; return its duration in seconds, and its outputs."""
        self._runner.last_plan = None
        outputs = self.core.step()
        plan = self._runner.last_plan
        if plan is None:  # nothing was computed, only refusals are returned
            return 0.0, outputs
        num_tokens = sum([scheduled.num_tokens for scheduled in plan.requests])
        num_cached = sum([r.num_computed_tokens for r in self.core.scheduler.running])
        return self._step_time.seconds(num_tokens, num_cached), outputs
