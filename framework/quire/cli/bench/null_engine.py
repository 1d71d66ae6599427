"""A real engine with a runner that does almost nothing, to measure the engine's own cost.

The scheduler, KV cache, KV cache spec and policy are those that serve a model with full attention.
Only the workers are replaced, by a runner that returns prepared results.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from quire.config import DEFAULT_SCHEDULING_POLICY, PluginSettings, SchedulerSettings
from quire.engine.core import EngineCore
from quire.engine.grammar.grammars import NoGrammars
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import NULL_BLOCKS, fixed_plan
from quire.engine.scheduling.scheduler import Scheduler
from quire.errors import CapacityError
from quire.interfaces.executor import StepRunner, Worker
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer, KVPlan
from quire.interfaces.scheduling import SchedulingPolicy
from quire.messages import (
    EngineRequest,
    RowBitmask,
    SlotResult,
    StepPlan,
    StepResult,
    WorkerControl,
)
from quire.plugins.loading import load_plugins
from quire.sampling_params import SamplingParams

BLOCK_SIZE = 16
FULL_ATTENTION = KVLayer("layers.0", "full_attention", num_kv_heads=1, head_dim=16)
SAMPLED_TOKEN = 7
VOCAB_SIZE = 50_000
FILLER_BLOCKS = 4096  # of one request that fills the pool
MAX_SETUP_STEPS = 8
MAX_QUEUED = 100_000
NO_MODEL = "an engine without a model loads and allocates nothing"


@dataclass(frozen=True, slots=True)
class Workload:
    """State of the engine when it is measured.

    Attributes:
        num_running: Number of requests that decode.
        context: Number of tokens of each at the start; a multiple of the block size.
        num_blocks: Number of KV blocks, the null block included; None for as many as needed.
        num_steps: Number of steps that each request can decode.
        async_scheduling: True to plan a step while the one before runs.
        is_pool_full: True if every block holds a cached prefix, so that each allocation evicts
            one.
    """

    num_running: int
    context: int = 1024
    num_blocks: int | None = None
    num_steps: int = 256
    async_scheduling: bool = False
    is_pool_full: bool = False

    def blocks_needed(self, num_groups: int) -> int:
        """Return the number of blocks that the requests can use, plus one for each."""
        blocks_each = -(-(self.context + self.num_steps) // BLOCK_SIZE) + 1
        return self.num_running * blocks_each * num_groups + NULL_BLOCKS


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Parts from plugins that an engine without a model needs.

    Attributes:
        specs: KV cache specs, one for each layer of the absent model.
        policy: Scheduling policy.
    """

    specs: tuple[KVCacheSpec, ...]
    policy: type[SchedulingPolicy]

    @classmethod
    def load(cls, layers: Sequence[KVLayer] = (FULL_ATTENTION,)) -> "EngineParts":
        """Load the parts of the installed plugins.

        Raises:
            QuireError: A part is missing, cannot be imported, or refuses its layer.
        """
        registries = load_plugins(PluginSettings()).registries
        specs = [
            registries.kv_cache_specs.get(layer.spec)(layer, BLOCK_SIZE, "float32")
            for layer in layers
        ]
        policy = registries.scheduling_policies.get(DEFAULT_SCHEDULING_POLICY)
        return cls(tuple(specs), policy)


class IdleWorker(Worker):
    """Worker without a model."""

    def load(self) -> NoReturn:
        """Refuse: there is no model."""
        raise RuntimeError(NO_MODEL)

    def allocate(self, plans: Sequence[KVPlan]) -> NoReturn:
        """Refuse: there is no model."""
        del plans
        raise RuntimeError(NO_MODEL)

    def check_health(self) -> None:
        """Do nothing: no process can die."""

    def shutdown(self) -> None:
        """Do nothing: no process runs."""


class IdleRunner(StepRunner):
    """Runner that returns prepared results: the same token for every request that samples."""

    def __init__(self, num_slots: int) -> None:
        self.last_plan: StepPlan | None = None
        self._rows = [SlotResult(slot, [SAMPLED_TOKEN]) for slot in range(num_slots)]
        self._launched: deque[StepPlan] = deque()

    def execute(self, plan: StepPlan) -> None:
        """Queue the plan."""
        self._launched.append(plan)

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Do nothing: the results are prepared."""

    def collect(self, plan_id: int) -> StepResult:
        """Return the prepared results of the requests that sample."""
        plan, rows = self._launched.popleft(), self._rows
        self.last_plan = plan
        sampled = [rows[scheduled.slot] for scheduled in plan.requests if scheduled.num_samples]
        return StepResult(plan_id=plan_id, results=sampled)

    def control(self, command: WorkerControl) -> None:
        """Do nothing: there are no workers."""


def make_core(parts: EngineParts, workload: Workload) -> tuple[EngineCore, IdleRunner]:
    """Build the engine for a workload; no request is added yet.

    Raises:
        CapacityError: The pool is too small for the workload.
    """
    budget = max(workload.num_running * workload.context, FILLER_BLOCKS * BLOCK_SIZE)
    settings = SchedulerSettings(
        max_num_seqs=workload.num_running,
        max_num_batched_tokens=budget,
        max_num_queued=MAX_QUEUED,
    )
    plan = _plan(parts, workload)
    kv = KVCacheManager(plan, enable_prefix_caching=True, root=b"bench", max_step_tokens=budget)
    runner = IdleRunner(workload.num_running)
    core = EngineCore(
        Scheduler(settings, kv, parts.policy()),
        IdleWorker(),
        runner,
        NoGrammars(),
        async_scheduling=workload.async_scheduling,
    )
    return core, runner


def start_decoding(core: EngineCore, workload: Workload) -> None:
    """Run the requests of a workload until each decodes and has the workload's context.

    Raises:
        RuntimeError: They do not decode after `MAX_SETUP_STEPS` steps: a bug of the engine.
    """
    if workload.is_pool_full:
        fill_pool(core)
    for index in range(workload.num_running):
        core.add(make_message(f"r{index}", workload.context - 1, workload.num_steps, first=index))
    for _ in range(MAX_SETUP_STEPS):
        core.step()
        running = core.scheduler.running
        is_whole = len(running) == workload.num_running
        if is_whole and all(request.num_generated_tokens for request in running):
            return
    raise RuntimeError(f"{workload} does not decode after {MAX_SETUP_STEPS} steps")


def make_message(
    request_id: str, num_prompt_tokens: int, max_tokens: int, first: int = 0
) -> EngineRequest:
    """Return a request; its prompt is unique to `first`."""
    prompt = [first % VOCAB_SIZE, first // VOCAB_SIZE]
    prompt += [(first * 7919 + position * 31) % VOCAB_SIZE for position in range(num_prompt_tokens)]
    return EngineRequest(
        request_id=request_id,
        token_ids=prompt[:num_prompt_tokens],
        params=SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True),
        max_tokens=max_tokens,
        seed=0,
    )


def compute(core: EngineCore, message: EngineRequest) -> None:
    """Compute a request's prompt and one token; its full blocks are cached from then on.

    Raises:
        RuntimeError: The request does not finish.
    """
    core.add(message)
    for _ in range(MAX_SETUP_STEPS):
        if not core.has_work():
            return
        core.step()
    raise RuntimeError(f"request {message.request_id} has not finished")


def fill_pool(core: EngineCore) -> None:
    """Fill all blank blocks with cached prefixes that no later request has."""
    pool = core.scheduler.kv.pool
    for count in range(1, pool.num_blocks):
        if not pool.num_blank:
            return
        num_blocks = min(pool.num_blank, FILLER_BLOCKS)
        compute(core, make_message(f"f{count}", num_blocks * BLOCK_SIZE, 1, first=-count))


def _plan(parts: EngineParts, workload: Workload) -> KVPlan:
    num_groups = len(fixed_plan(parts.specs, NULL_BLOCKS + 1).groups)
    needed = workload.blocks_needed(num_groups)
    num_blocks = needed if workload.num_blocks is None else workload.num_blocks
    if num_blocks < needed:
        raise CapacityError(
            f"{workload.num_running} requests of {workload.context} tokens need {needed} KV blocks "
            f"for {workload.num_steps} steps; the pool has {num_blocks}"
        )
    return fixed_plan(parts.specs, num_blocks)
