"""Small real parts for tests of the engine: a spec, requests, and workers that count."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from quire.config import SchedulerSettings
from quire.engine.core import EngineCore
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.request import Request
from quire.engine.scheduling.scheduler import Scheduler
from quire.errors import GrammarError
from quire.interfaces.executor import StepRunner, Worker
from quire.interfaces.kv_cache import KVLayer, KVPlan
from quire.interfaces.scheduling import ScheduledView, SchedulingPolicy
from quire.messages import (
    AdapterRef,
    EngineOutput,
    EngineRequest,
    ErrorReport,
    RowBitmask,
    SlotResult,
    StepPlan,
    StepResult,
    WorkerControl,
)
from quire.sampling_params import SamplingParams
from quire.testing.whole_context import WholeContext

EOS = 0
BLOCK_SIZE = 4


def make_plan(num_blocks: int, block_size: int = BLOCK_SIZE, num_layers: int = 2) -> KVPlan:
    layers = [KVLayer(f"layers.{i}", "whole", 1, 8) for i in range(num_layers)]
    return fixed_plan([WholeContext(layer, block_size, "float32") for layer in layers], num_blocks)


class CountingExecutor(Worker, StepRunner):
    """Workers that sample `last known token + 1` and check every plan against their own state."""

    def __init__(self, vocab_size: int = 1000, fail_on: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.fail_on = fail_on  # a token id at which the "model" fails for that request
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.blocks: dict[int, list[list[int]]] = {}
        self.plans: deque[StepPlan] = deque()
        self.results: deque[StepResult] = deque()
        self.num_tokens_per_step: list[int] = []
        self.masks: list[RowBitmask] = []
        self.num_checks = 0
        self.is_shut_down = False

    def load(self) -> Any:
        raise NotImplementedError

    def allocate(self, plans: Sequence[KVPlan]) -> StepRunner:
        raise NotImplementedError

    def execute(self, plan: StepPlan) -> None:
        for given in plan.assignments:
            self.tokens[given.slot] = list(given.token_ids)
            self.computed[given.slot] = given.num_computed_tokens
            self.blocks[given.slot] = [list(ids) for ids in given.block_ids]
        for added in plan.new_blocks:
            self.blocks[added.slot][added.group] += added.block_ids
        for entry in plan.requests:
            self.computed[entry.slot] += entry.num_tokens
            if any(
                BLOCK_SIZE * len(b) < self.computed[entry.slot] for b in self.blocks[entry.slot]
            ):
                raise AssertionError(f"slot {entry.slot} computes beyond its blocks")
            is_last = self.computed[entry.slot] == len(self.tokens[entry.slot])
            if entry.num_samples != int(is_last):
                raise AssertionError(f"slot {entry.slot} samples at the wrong time")
        self.num_tokens_per_step.append(sum(entry.num_tokens for entry in plan.requests))
        self.plans.append(plan)

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        plan = self.plans[-1]
        if plan.plan_id != plan_id:
            raise AssertionError("sample without its plan")
        self.masks = list(masks)
        rows = [self._sample(entry.slot) for entry in plan.requests if entry.num_samples]
        self.results.append(StepResult(plan_id=plan_id, results=rows))

    def collect(self, plan_id: int) -> StepResult:
        if self.plans.popleft().plan_id != plan_id:
            raise AssertionError("collect without its plan")
        return self.results.popleft()

    def control(self, message: WorkerControl) -> Any:
        return message

    def check_health(self) -> None:
        self.num_checks += 1

    def shutdown(self) -> None:
        self.is_shut_down = True

    def _sample(self, slot: int) -> SlotResult:
        last = self.tokens[slot][-1]
        if self.fail_on in self.tokens[slot]:  # the rows of a step are sampled whatever they hold
            self.tokens[slot].append(last)
            return SlotResult(slot, [], None, ErrorReport("request_failed", "token is cursed"))
        token_id = (last + 1) % self.vocab_size
        self.tokens[slot].append(token_id)
        return SlotResult(slot, [token_id])


VOCAB_SIZE = 100  # of the core's own masks


class ScriptedGrammars:
    """Grammars that are ready when the test says so."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self.clients: dict[str, str] = {}
        self.ready: list[tuple[str, GrammarError | None]] = []
        self.accepted: dict[str, list[int]] = {}
        self.released: list[str] = []
        self.inactive: set[str] = set()
        self.num_waits = 0
        self.is_shut_down = False
        self._rows: list[tuple[int, str]] = []

    def submit(
        self, request_id: str, params: Any, *, is_active: bool = True, client: str = ""
    ) -> None:
        self.submitted.append(request_id)
        self.clients[request_id] = client
        if not is_active:
            self.inactive.add(request_id)

    def activate(self, request_id: str) -> None:
        self.inactive.remove(request_id)

    def poll(self) -> list[tuple[str, GrammarError | None]]:
        ready, self.ready = self.ready, []
        return ready

    def wait_for_compile(self, timeout_s: float) -> None:
        self.num_waits += 1

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        self.accepted.setdefault(request_id, []).extend(token_ids)

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        self._rows = [row for row in rows if row[1] not in self.inactive]

    def collect_masks(self) -> list[RowBitmask]:
        return [RowBitmask(slot, 0, b"\xff" * 128) for slot, _ in self._rows]

    def release(self, request_id: str) -> None:
        self.released.append(request_id)

    def shutdown(self) -> None:
        self.is_shut_down = True


class InOrder(SchedulingPolicy):
    """First come, first served."""

    def order(self, request: ScheduledView) -> int:
        return 0


class FirstHasToGo(InOrder):
    """Chooses the first as the victim."""

    def victim(self, running: Sequence[ScheduledView]) -> int:
        return 0


def make_scheduler(
    num_blocks: int = 100,
    max_adapters: int = 8,
    policy: SchedulingPolicy | None = None,
    enable_prefix_caching: bool = False,
    kv: KVCacheManager | None = None,
    transfers: KVTransfers | None = None,
    pipeline_parallel_size: int = 1,
    **settings: Any,
) -> Scheduler:
    if kv is None:
        plan = make_plan(num_blocks)
        kv = KVCacheManager(plan, enable_prefix_caching=enable_prefix_caching)
    limits = SchedulerSettings(**settings).for_device("cpu")
    return Scheduler(
        limits,
        kv,
        policy or InOrder(),
        max_adapters,
        transfers,
        verifies_drafts=True,
        pipeline_parallel_size=pipeline_parallel_size,
    )


def make_core(
    num_blocks: int = 100,
    fail_on: int | None = None,
    async_scheduling: bool = False,
    **settings: Any,
) -> tuple[EngineCore, CountingExecutor, ScriptedGrammars]:
    executor, grammars = CountingExecutor(fail_on=fail_on), ScriptedGrammars()
    scheduler = make_scheduler(num_blocks, **settings)
    return (
        EngineCore(
            scheduler,
            executor,
            executor,
            grammars,
            async_scheduling=async_scheduling,
            vocab_size=VOCAB_SIZE,
        ),
        executor,
        grammars,
    )


def make_message(
    request_id: str,
    prompt: Sequence[int] = (10, 11, 12),
    max_tokens: int = 4,
    adapter: str | None = None,
    **params: Any,
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        token_ids=list(prompt),
        params=SamplingParams(max_tokens=max_tokens, **params),
        max_tokens=max_tokens,
        seed=0,
        stop_token_ids=(EOS, *params.get("stop_token_ids", ())),
        adapter=AdapterRef(adapter, f"adapters/{adapter}", f"content of {adapter}")
        if adapter
        else None,
    )


def make_request(request_id: str, **options: Any) -> Request:
    return Request(make_message(request_id, **options), 1)


def run_to_end(core: EngineCore, max_steps: int = 1000) -> dict[str, list[int]]:
    """Step until nothing is left; the tokens of each request."""
    completions: dict[str, list[int]] = {}
    for _ in range(max_steps):
        if not core.has_work():
            return completions
        for output in core.step().outputs:
            completions.setdefault(output.request_id, []).extend(output.token_ids)
    raise AssertionError(f"still busy after {max_steps} steps")


def finish_step(scheduler: Scheduler, plan: StepPlan, token_id: int = 7) -> list[EngineOutput]:
    """Complete a step in which each request that samples gets the same token."""
    rows = (SlotResult(s.slot, [token_id]) for s in plan.requests if s.num_samples)
    return take(scheduler, plan, *rows)


def take(scheduler: Scheduler, plan: StepPlan, *rows: SlotResult) -> list[EngineOutput]:
    """Complete a step with these rows."""
    return scheduler.update(plan, StepResult(plan_id=plan.plan_id, results=list(rows)))


def num_found(scheduler: Scheduler, prompt: Sequence[int]) -> int:
    """Return the number of tokens of a prompt that a new request would find computed."""
    request = make_request("new", prompt=prompt)
    scheduler.kv.prepare(request)
    hit = scheduler.kv.find_prefix(request)
    return 0 if hit is None else 4 * hit.num_blocks
