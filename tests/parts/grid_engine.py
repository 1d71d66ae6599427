"""An engine whose workers are the ranks of a grid, as threads; the scheduler and core are real."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from engine_parts import InOrder, ScriptedGrammars
from grid_parts import placing_any_grid

from quire.compose.composition import Composition
from quire.compose.sizes.layer_specs import stage_specs
from quire.config import Settings
from quire.engine.core import EngineCore
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_cache.kv_plan import fixed_stages
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.scheduling.scheduler import Scheduler
from quire.errors import StepFailedError
from quire.interfaces.executor import StepRunner
from quire.interfaces.kv_cache import KVPlan
from quire.launch.composing import Composed, compose_engine
from quire.launch.kv_store_setup import load_store
from quire.layers import TensorParallelGroup
from quire.messages import (
    EngineOutput,
    EngineRequest,
    RowBitmask,
    StepPlan,
    StepResult,
    TokenPatch,
    TransferReport,
    WorkerControl,
)
from quire.plugins.loading import load_plugins
from quire.sampling_params import SamplingParams
from quire.testing.model.threaded_ranks import RankThreads, results_of
from quire.worker.model_runner import ModelRunner
from quire.worker.parts import WorkerParts
from quire.worker.stage import Stage
from quire.worker.worker import ModelWorker

ALWAYS = {"dtype": "float32", "threads": 1, "enforce_eager": True, "block_size": 4}


@dataclass(frozen=True)
class Grid:
    """Numbers of ranks, and the first layer of each pipeline stage."""

    tp_size: int = 1
    starts: tuple[int, ...] = (0,)

    @property
    def pp_size(self) -> int:
        return len(self.starts)

    def layers(self, stage: int, num_layers: int) -> range:
        return range(*(*self.starts, num_layers)[stage : stage + 2])

    def __str__(self) -> str:
        return f"tp{self.tp_size}-pp{self.pp_size}"


class GridRunner(StepRunner):
    """Sends each call to all ranks.

    Attributes:
        runners: Runner of each rank.
        digests: Digest of each step, from every rank of the last stage.
        adds_patches: Whether token patches are added as if there were several stages.
        num_patches: Number of patches in all plans.
        failures: Failures of steps, which the core isolates.
    """

    def __init__(self, threads: RankThreads, runners: Sequence[ModelRunner]) -> None:
        self.runners = list(runners)
        self.digests: list[list[int]] = []
        self.adds_patches = False
        self.num_patches = 0
        self.failures: list[StepFailedError] = []
        self._threads = threads
        self._calls: list[Future[Any]] = []
        self._num_known: dict[int, int] = {}
        self._patches: dict[int, TokenPatch] = {}
        self._ended: dict[int, list[bool]] = {}  # transfer -> whether it was done, on each rank

    def execute(self, plan: StepPlan) -> None:
        plan = self._patched(plan)
        self._start(lambda runner: runner.execute(plan))

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        self._start(lambda runner: runner.sample(plan_id, masks))

    def collect(self, plan_id: int) -> StepResult:
        self._start(lambda runner: runner.collect(plan_id))
        calls, self._calls = self._calls, []
        results = self._results_of(calls)[-len(self.runners) :]
        num_last = self._threads.tp_size
        for result in results[:-num_last]:
            if result.digest or any(each.token_ids for each in result.results):
                raise AssertionError("an earlier stage has sampled")
        self.digests.append([result.digest for result in results[-num_last:]])
        result = results[-num_last]
        for each in result.results:
            self._note(each.slot, each.token_ids)
        return msgspec.structs.replace(result, transfers=self._merged(results))

    def control(self, command: WorkerControl) -> Any:
        return self._threads.run([partial(runner.control, command) for runner in self.runners])

    def _start(self, call: Callable[[ModelRunner], Any]) -> None:
        self._calls += self._threads.submit([partial(call, runner) for runner in self.runners])

    def _results_of(self, calls: list[Future[Any]]) -> list[Any]:
        try:
            return results_of(calls)
        except StepFailedError as error:
            self.failures.append(error)
            raise

    def _patched(self, plan: StepPlan) -> StepPlan:
        for given in plan.assignments:
            self._num_known[given.slot] = len(given.token_ids)
            self._patches.pop(given.slot, None)
        if self.adds_patches:
            found = (self._patches.pop(scheduled.slot, None) for scheduled in plan.requests)
            patches = [patch for patch in found if patch]
            plan = msgspec.structs.replace(plan, token_patches=patches)
        self.num_patches += len(plan.token_patches)
        return plan

    def _note(self, slot: int, token_ids: list[int]) -> None:
        if token_ids:
            self._patches[slot] = TokenPatch(slot, self._num_known[slot], token_ids)
            self._num_known[slot] += len(token_ids)

    def _merged(self, results: Sequence[StepResult]) -> TransferReport | None:
        """A transfer has ended when it has on all ranks; it is done if it is on all."""
        for result in results:
            if result.transfers is not None:
                for transfer in result.transfers.done:
                    self._ended.setdefault(transfer, []).append(True)
                for transfer in result.transfers.failed:
                    self._ended.setdefault(transfer, []).append(False)
        ended = [t for t, seen in self._ended.items() if len(seen) == len(self.runners)]
        done = {transfer: all(self._ended.pop(transfer)) for transfer in ended}
        if not done:
            return None
        return TransferReport(
            done=[t for t, is_done in done.items() if is_done],
            failed=[t for t, is_done in done.items() if not is_done],
        )


class EveryThirdToken(ScriptedGrammars):
    """Grammars that are ready at once: token i of a completion leaves the remainder i % 3."""

    def submit(
        self, request_id: str, params: Any, *, is_active: bool = True, client: str = ""
    ) -> None:
        super().submit(request_id, params, is_active=is_active, client=client)
        self.accepted[request_id] = []
        self.ready.append((request_id, None))

    def collect_masks(self) -> list[RowBitmask]:
        return [self._mask(slot, len(self.accepted[name])) for slot, name in self._rows]

    def _mask(self, slot: int, count: int) -> RowBitmask:
        bits = sum(1 << token for token in range(count % 3, 512, 3))
        return RowBitmask(slot, 0, bits.to_bytes(64, "little"))


@dataclass
class Completion:
    """What an engine has returned for one request."""

    outputs: list[EngineOutput] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def error(self) -> str | None:
        error = self.outputs[-1].error
        return None if error is None else error.message

    @property
    def num_cached_tokens(self) -> int:
        return max(output.num_cached_tokens for output in self.outputs)

    def logprobs(self, kind: str) -> list[list[float]]:
        """The log probabilities at each position, of `logprobs` or `prompt_logprobs`."""
        found = [getattr(output, kind) or [] for output in self.outputs]
        return [[row.logprobs[0], *sorted(row.logprobs[1:])] for rows in found for row in rows]


@dataclass
class GridEngine:
    """A running engine."""

    grid: Grid
    core: EngineCore
    runner: GridRunner
    workers: list[ModelWorker]
    plans: list[KVPlan]
    field_defaults: dict[str, Any]  # of the fields that samplers add, as an intake gives them

    def run(self, requests: Sequence[EngineRequest], max_steps: int = 500) -> dict[str, Completion]:
        """Run requests to their end."""
        for request in requests:
            self.add(request)
        found = {request.request_id: Completion() for request in requests}
        for _ in range(max_steps):
            if not self.core.has_work():
                return found
            for output in self.core.step().outputs:
                found[output.request_id].outputs.append(output)
        raise AssertionError(f"still busy after {max_steps} steps")

    def add(self, request: EngineRequest) -> None:
        """Add a request, with the defaults of the fields that it lacks."""
        extra_args = self.field_defaults | request.params.extra_args
        params = msgspec.structs.replace(request.params, extra_args=extra_args)
        self.core.add(msgspec.structs.replace(request, params=params))


@contextmanager
def grid_engine(
    folder: Path,
    grid: Grid,
    *,
    num_blocks: int = 200,
    wrap_group: Callable[[TensorParallelGroup], TensorParallelGroup] = lambda group: group,
    **options: Any,
):
    """Start an engine on a grid of ranks."""
    composed = compose_grid(folder, grid, options)
    settings, composition = composed.settings, composed.composition
    parts = WorkerParts.load(settings, composition, composed.plugins.registries)
    threads = RankThreads(grid.tp_size, grid.pp_size)
    threads.groups = [wrap_group(group) for group in threads.groups]
    ranks = range(composition.grid.size)
    workers = [make_worker(composed, parts, threads, rank) for rank in ranks]
    try:
        threads.run([worker.load for worker in workers])
        stages = stage_specs(composition, parts.kv_specs)
        plans = [
            replace(plan, max_model_len=composition.max_model_len, rank=grid.tp_size * stage)
            for stage, plan in enumerate(fixed_stages(stages, num_blocks))
        ]
        runner = GridRunner(threads, threads.run([partial(w.allocate, plans) for w in workers]))
        core = make_core(composed, plans[0], runner, workers[0])
        yield GridEngine(grid, core, runner, workers, plans, _added_fields(composition))
        core.shutdown()
        threads.run([worker.shutdown for worker in workers])
    finally:
        threads.close()


def _added_fields(composition: Composition) -> dict[str, Any]:
    """Defaults of the fields that `SamplingParams` does not have as plain numbers."""
    plain = SamplingParams().sampler_fields
    return {
        field.name: field.worker_default
        for field in composition.sampler_fields
        if field.name not in plain
    }


def compose_grid(folder: Path, grid: Grid, options: Mapping[str, Any]) -> Composed:
    stages = []  # of one stage, which has all layers
    if grid.pp_size > 1:
        num_layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
        stages = [len(grid.layers(stage, num_layers)) for stage in range(grid.pp_size)]
    sizes = {
        "tensor_parallel_size": grid.tp_size,
        "pipeline_parallel_size": grid.pp_size,
        "pipeline_layers": stages,
    }
    settings = Settings.from_options({"model": str(folder), **sizes, **ALWAYS, **options})
    plugins = load_plugins(settings.plugins)
    return compose_engine(
        settings, replace(plugins, registries=placing_any_grid(plugins.registries))
    )


def make_worker(
    composed: Composed, parts: WorkerParts, threads: RankThreads, rank: int
) -> ModelWorker:
    composition = composed.composition
    index, tp_rank = composition.grid.place(rank)
    count = composition.grid.pp_size
    stage = Stage(
        index=index,
        count=count,
        layers=composition.stage_layers[index],
        previous=threads.links[index - 1][tp_rank] if index else None,
        next=threads.links[index][tp_rank] if index < count - 1 else None,
    )
    group, size = threads.groups[rank], composition.grid.size
    return ModelWorker(composed.settings, parts, group, stage, ranks_on_node=size)


def make_core(
    composed: Composed, plan: KVPlan, runner: GridRunner, worker: ModelWorker
) -> EngineCore:
    settings = composed.settings
    kv = KVCacheManager(
        plan,
        enable_prefix_caching=settings.cache.enable_prefix_caching,
        max_step_tokens=settings.scheduler.max_num_batched_tokens,
    )
    store, transfers = load_store(composed), None
    if store is not None:
        transfers = KVTransfers(store(settings.cache.store_options, plan), kv, 60.0, "store")
    pp_size = composed.composition.grid.pp_size
    scheduler = Scheduler(
        settings.scheduler,
        kv,
        InOrder(),
        settings.lora.max_loras,
        transfers,
        pipeline_parallel_size=pp_size,
    )
    return EngineCore(scheduler, worker, runner, EveryThirdToken(), pipeline_parallel_size=pp_size)
