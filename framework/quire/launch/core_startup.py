"""Start-up of an engine core: the workers first, because they measure the memory for the cache."""

from collections.abc import Callable, Sequence

from quire.engine.core import EngineCore
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.kv_store.kv_transfers import KVTransfers
from quire.engine.scheduling.scheduler import Scheduler
from quire.interfaces.executor import StepRunner, Worker
from quire.interfaces.kv_cache import KVPlan
from quire.launch.cache_root import cache_root
from quire.launch.composing import Composed
from quire.launch.grammar_setup import make_grammars
from quire.launch.kv_memory import log_memory, log_reduction, plan_memory
from quire.launch.kv_store_setup import check_store_options, load_store, store_plan
from quire.launch.workers.placing.worker_start import start_workers
from quire.messages import Started


def _do_nothing() -> None:
    pass


def start_core(
    composed: Composed, before_load: Callable[[], None] = _do_nothing
) -> tuple[EngineCore, Started]:
    """Start the workers, load the weights and allocate the cache.

    Args:
        composed: Composition of the engine.
        before_load: Function that is called when the workers have started: their code is imported,
            and nothing is loaded yet.

    Returns:
        The core, ready for requests, and what its start-up found.

    Raises:
        QuireError: The core cannot be started; the message says why and what would help.
    """
    settings = composed.settings
    check_store_options(composed)  # before the weights, which take long to load
    worker = start_workers(composed)
    try:
        before_load()
        info = worker.load()
        plans, runner = _allocate(composed, worker, info.kv_bytes)
        wanted = settings.scheduler.async_scheduling
        async_scheduling = info.is_asynchronous if wanted is None else wanted
        scheduler, grammars = _make_scheduler(composed, plans), make_grammars(composed)
        core = EngineCore(
            scheduler,
            worker,
            runner,
            grammars,
            async_scheduling=async_scheduling,
            pipeline_parallel_size=composed.composition.grid.pp_size,
            vocab_size=composed.composition.description.vocab_size,
        )
    except BaseException:
        worker.shutdown()
        raise
    return core, Started(plans[0].max_model_len)


def _allocate(
    composed: Composed, worker: Worker, kv_bytes: Sequence[int]
) -> tuple[Sequence[KVPlan], StepRunner]:
    """Plan and allocate the KV cache in the memory that the weights leave free.

    Returns:
        The plan of each pipeline stage, and the runner.
    """
    settings, composition = composed.settings, composed.composition
    plans = plan_memory(settings, composition, composed.plugins.registries, kv_bytes)
    log_reduction(composition, plans)
    runner = worker.allocate(plans)
    log_memory(plans)
    return plans, runner


def _make_scheduler(composed: Composed, plans: Sequence[KVPlan]) -> Scheduler:
    settings, composition = composed.settings, composed.composition
    plan = plans[0]  # its block tables are those of every stage
    policy = composed.plugins.registries.scheduling_policies.load(
        composition.scheduling_policy.entry
    )
    kv = KVCacheManager(
        plan,
        enable_prefix_caching=settings.cache.enable_prefix_caching,
        root=cache_root(settings.model, composition, plan),
        max_step_tokens=settings.scheduler.max_num_batched_tokens,
        reports_events=settings.cache.kv_events,
    )
    transfers = _make_transfers(composed, plans, kv)
    return Scheduler(
        settings.scheduler,
        kv,
        policy(),
        settings.lora.max_loras,
        transfers,
        pipeline_parallel_size=composition.grid.pp_size,
    )


def _make_transfers(
    composed: Composed, plans: Sequence[KVPlan], kv: KVCacheManager
) -> KVTransfers | None:
    """Build the scheduler side of the external KV store, or None if it is off."""
    cache, store = composed.settings.cache, load_store(composed)
    if store is None:
        return None
    name, plan = str(composed.composition.kv_store), store_plan(plans)
    return KVTransfers(store(cache.store_options, plan), kv, cache.kv_store_timeout_s, name)
