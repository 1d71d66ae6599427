"""A real engine around workers that do as little as possible: what it costs is the engine's own.

The scheduler, the KV cache, the spec and the policy are those that serve a model with full
attention; only the executor is replaced, by one that has its results made beforehand.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.config import DEFAULT_SCHEDULING_POLICY, PluginSettings, SchedulerSettings
from quire.engine.core import EngineCore
from quire.engine.grammar.grammars import NoGrammars
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import NULL_BLOCKS, fixed_plan
from quire.engine.scheduling.scheduler import Scheduler
from quire.errors import CapacityError
from quire.interfaces.executor import Executor, Worker, WorkerLaunch
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer, KVPlan
from quire.interfaces.scheduling import SchedulingPolicy
from quire.messages import (
    EngineRequest,
    RowBitmask,
    SlotResult,
    StepPlan,
    StepResult,
    WorkerInfo,
)
from quire.plugins.loading import load_plugins
from quire.sampling_params import SamplingParams

BLOCK_SIZE = 16
FULL_ATTENTION = KVLayer("layers.0", "full_attention", num_kv_heads=1, head_dim=16)
DRAWN_TOKEN = 7
VOCAB_SIZE = 50_000
FILLER_BLOCKS = 4096  # of one request that leaves a full pool behind
MAX_STEPS_TO_BEGIN = 8
MAX_QUEUED = 100_000


@dataclass(frozen=True, slots=True)
class Scene:
    """What the engine is doing when it is measured.

    Attributes:
        num_running: Requests that decode.
        context: Tokens of each when the measuring begins; a multiple of the block size.
        num_blocks: KV blocks in the pool, the null block included; None: as many as are needed.
        num_steps: Steps that each can decode.
        async_scheduling: Plan a step while the one before runs.
        is_pool_full: Every block holds a prefix that could be found, so each one that is taken
            drives another out.
    """

    num_running: int
    context: int = 1024
    num_blocks: int | None = None
    num_steps: int = 256
    async_scheduling: bool = False
    is_pool_full: bool = False

    def blocks_needed(self, num_groups: int) -> int:
        """Return the blocks that its requests can come to use, and one for each to spare."""
        blocks_each = -(-(self.context + self.num_steps) // BLOCK_SIZE) + 1
        return self.num_running * blocks_each * num_groups + NULL_BLOCKS


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The plugins' parts that an engine without a model needs.

    Attributes:
        specs: One for each layer of the model that is not there.
        policy: Who goes first.
    """

    specs: tuple[KVCacheSpec, ...]
    policy: type[SchedulingPolicy]

    @classmethod
    def load(cls, layers: Sequence[KVLayer] = (FULL_ATTENTION,)) -> "EngineParts":
        """Find them among the installed plugins.

        Raises:
            QuireError: One is missing, cannot be imported, or refuses its layer.
        """
        registries = load_plugins(PluginSettings()).registries
        specs = [
            registries.kv_cache_specs.get(layer.spec)(layer, BLOCK_SIZE, "float32")
            for layer in layers
        ]
        policy = registries.scheduling_policies.get(DEFAULT_SCHEDULING_POLICY)
        return cls(tuple(specs), policy)


class IdleExecutor(Executor):
    """Workers that draw one token for everybody who samples, from results made beforehand."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(WorkerLaunch(make=_no_worker))
        self.last_plan: StepPlan | None = None
        self._rows = [SlotResult(slot, [DRAWN_TOKEN]) for slot in range(num_slots)]
        self._launched: deque[StepPlan] = deque()

    def start(self) -> WorkerInfo:
        """Return a device without memory."""
        return WorkerInfo(device="none", dtype="none", weight_bytes=0, available_kv_bytes=0)

    def allocate(self, plan: KVPlan) -> None:
        """There is nothing to allocate."""

    def execute(self, plan: StepPlan) -> None:
        """Note the plan."""
        self._launched.append(plan)

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """There is nothing to launch."""

    def collect(self, plan_id: int) -> StepResult:
        """Return the prepared results of those who sample."""
        plan, rows = self._launched.popleft(), self._rows
        self.last_plan = plan
        sampled = [rows[share.slot] for share in plan.requests if share.num_samples]
        return StepResult(plan_id=plan_id, results=sampled)

    def control(self, message: Any) -> Any:
        """There is nobody to tell."""

    def check_health(self) -> None:
        """Nothing can die."""

    def shutdown(self) -> None:
        """There is nothing to stop."""


def make_core(parts: EngineParts, scene: Scene) -> tuple[EngineCore, IdleExecutor]:
    """Build the engine for a scene; nothing runs yet.

    Raises:
        CapacityError: The pool is too small for the scene.
    """
    budget = max(scene.num_running * scene.context, FILLER_BLOCKS * BLOCK_SIZE)
    settings = SchedulerSettings(
        max_num_seqs=scene.num_running,
        max_num_batched_tokens=budget,
        max_num_queued=MAX_QUEUED,
    )
    plan = _plan(parts, scene)
    kv = KVCacheManager(plan, enable_prefix_caching=True, root=b"bench", max_step_tokens=budget)
    executor = IdleExecutor(scene.num_running)
    scheduler = Scheduler(settings, kv, parts.policy())
    return EngineCore(
        scheduler, executor, NoGrammars(), async_scheduling=scene.async_scheduling
    ), executor


def begin(core: EngineCore, scene: Scene) -> None:
    """Let the scene's requests run, until each decodes and has the scene's context.

    Raises:
        RuntimeError: They do not come to it; the engine is wrong.
    """
    if scene.is_pool_full:
        fill_pool(core)
    for index in range(scene.num_running):
        core.add(make_message(f"r{index}", scene.context - 1, scene.num_steps, first=index))
    for _ in range(MAX_STEPS_TO_BEGIN):
        core.step()
        running = core.scheduler.running
        is_whole = len(running) == scene.num_running
        if is_whole and all(request.num_generated_tokens for request in running):
            return
    raise RuntimeError(f"{scene} has not begun after {MAX_STEPS_TO_BEGIN} steps")


def make_message(
    request_id: str, num_prompt_tokens: int, max_tokens: int, first: int = 0
) -> EngineRequest:
    """Return a request whose prompt no other has, unless it has the same `first`."""
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
    """Compute a request's prompt and one token; its full blocks can be found from then on.

    Raises:
        RuntimeError: It does not end.
    """
    core.add(message)
    for _ in range(MAX_STEPS_TO_BEGIN):
        if not core.has_work():
            return
        core.step()
    raise RuntimeError(f"request {message.request_id} has not ended")


def fill_pool(core: EngineCore) -> None:
    """Leave no block blank: each holds a prefix that nobody will ask for."""
    pool = core.scheduler.kv.pool
    for count in range(1, pool.num_blocks):
        if not pool.num_blank:
            return
        num_blocks = min(pool.num_blank, FILLER_BLOCKS)
        compute(core, make_message(f"f{count}", num_blocks * BLOCK_SIZE, 1, first=-count))


def _plan(parts: EngineParts, scene: Scene) -> KVPlan:
    num_groups = len(fixed_plan(parts.specs, NULL_BLOCKS + 1).groups)
    needed = scene.blocks_needed(num_groups)
    num_blocks = needed if scene.num_blocks is None else scene.num_blocks
    if num_blocks < needed:
        raise CapacityError(
            f"{scene.num_running} requests of {scene.context} tokens need {needed} KV blocks for "
            f"{scene.num_steps} steps; the pool has {num_blocks}"
        )
    return fixed_plan(parts.specs, num_blocks)


def _no_worker(rank: int) -> Worker:
    raise RuntimeError(f"an engine without a model has no worker {rank}")
