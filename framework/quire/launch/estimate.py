"""Memory estimate of an engine that is not running, for `quire explain`.

It makes the same plan as start-up, from an estimate of the memory that the weights leave free. The
plan is exact if the size of the cache is given, and as good as the estimate otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from quire.compose.composition import Composition
from quire.compose.sizes.layer_specs import layer_specs, stage_specs
from quire.compose.sizes.memory_profile import MemoryProfile, least_cache_bytes, misfit
from quire.compose.sizes.weight_bytes import weight_bytes
from quire.config import Settings
from quire.engine.kv_cache.kv_plan import NULL_BLOCKS, requests_that_fit
from quire.errors import CapacityError
from quire.interfaces.kv_cache import KVCacheSpec, KVGroup, KVPlan
from quire.launch.composing import Composed
from quire.launch.kv_memory import log_reduction, plan_memory, planned_requests
from quire.launch.kv_store_setup import check_store_options, store_plan
from quire.launch.profile_estimate import estimate_profile
from quire.machine.free_memory import cache_bytes, free_host_bytes
from quire.machine.nvml import DeviceMemory, cuda_device_count, cuda_memory

LENGTHS = (1024, 4096, 16384)  # reported lengths of requests, in tokens


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """Memory of one KV group.

    Attributes:
        spec: Name of its layers' KV-cache spec, with its parameters.
        page_bytes: Bytes of one block over all tensors, padding included.
        padding_bytes: Bytes among these that its layers do not use.
        max_blocks: Maximum number of blocks that the longest request holds at the same time.
    """

    spec: str
    num_layers: int
    block_size: int
    page_bytes: int
    padding_bytes: int
    max_blocks: int

    @property
    def bytes_a_token(self) -> int:
        """Bytes of one cached token of the group, padding included."""
        return -(-self.page_bytes // self.block_size)


@dataclass(frozen=True, slots=True)
class Fit:
    """Number of requests of one length that fit at once; None: not limited by the cache."""

    num_tokens: int
    num_requests: int | None


@dataclass(frozen=True, slots=True)
class RankEstimate:
    """The share of a model and of its cache that one rank holds.

    Attributes:
        rank: Rank in the grid.
        stage: Pipeline stage.
        tp_rank: Rank among those that share the stage's layers.
        layers: Decoder layers of the stage.
        num_heads: Number of attention heads on the rank.
        num_kv_heads: Number of key/value heads on the rank; they are on several ranks if there are
            fewer of them than ranks.
        weight_bytes: Bytes of the weights.
        kv_bytes: Bytes of the KV cache; None if it is unknown before start-up.
        num_blocks: Number of KV blocks, without the null block; None if it is unknown.
    """

    rank: int
    stage: int
    tp_rank: int
    layers: range
    num_heads: int
    num_kv_heads: int
    weight_bytes: int
    kv_bytes: int | None = None
    num_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory of an engine; with several ranks, of the one with the least memory to spare.

    Attributes:
        weight_bytes: Bytes of the weights.
        cache_limit: Maximum bytes of the cache; None: the plan does not depend on it, or the free
            memory of the device is unknown.
        limited_by: Description of what limits the cache, for people.
        planned_requests: Number of requests of the maximum length that the cache is planned for,
            if memory allows; None: the cache takes all its memory.
        profile: Memory use of a GPU without the cache; None on a CPU, or if it is unknown.
        plan: Plan of the cache; None if there is a problem, or if it is unknown before start-up.
        groups: Memory of each KV group of the plan.
        fits: Number of requests that fit, by length.
        problem: Reason why an engine would not start, and what would help.
        ranks: What each rank holds.
    """

    weight_bytes: int
    cache_limit: int | None
    limited_by: str
    planned_requests: int | None = None
    profile: MemoryProfile | None = None
    plan: KVPlan | None = None
    groups: tuple[GroupEstimate, ...] = ()
    fits: tuple[Fit, ...] = ()
    problem: str | None = None
    ranks: tuple[RankEstimate, ...] = ()


def estimate_memory(composed: Composed) -> MemoryEstimate:
    """Plan the memory of an engine that is not running, with the checks of start-up.

    Raises:
        PluginError: A KV-cache spec cannot be loaded, or an attention backend does not support the
            plan.
        SettingsError: A spec does not support the sizes of its layer, or an option of the KV store
            is invalid.
    """
    check_store_options(composed)
    settings, composition = composed.settings, composed.composition
    ranks = _ranks(composition)
    available = _available_memory(composed, ranks)
    memory = _of_fullest_rank(composed, ranks, available)[0]
    limit = memory.cache_limit
    problem = next((each.problem for each in available if each.problem is not None), None)
    if problem is not None:
        return replace(memory, problem=problem)
    if limit is None and settings.cache.num_kv_blocks is None and composition.description.kv_layers:
        return memory
    free = [each.cache_bytes or 0 for each in available]
    try:
        plans = plan_memory(settings, composition, composed.plugins.registries, free)
    except CapacityError as error:
        return replace(memory, problem=str(error))
    log_reduction(composition, plans)
    check_store_options(composed, store_plan(plans))
    problem = _cache_problem(composition, plans, available, memory.limited_by)
    if problem is not None:
        return replace(memory, problem=problem)
    ranks = tuple(_with_cache(rank, plans[rank.stage]) for rank in ranks)
    memory, fullest = _of_fullest_rank(composed, ranks, available)
    return _with_plan(memory, plans[fullest.stage], settings.scheduler.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class _AvailableMemory:
    """Memory of a rank for the cache; None where it is unknown.

    Attributes:
        free_bytes: Bytes that nothing else needs; on a CPU, all ranks together.
        cache_bytes: Bytes that the cache of the rank may take if its size is not given.
        limited_by: Description of what limits these, for people.
        profile: Memory use of a GPU without the cache.
        problem: Reason why an engine would not start.
    """

    free_bytes: float | None
    cache_bytes: int | None
    limited_by: str
    profile: MemoryProfile | None = None
    problem: str | None = None


def _ranks(composition: Composition) -> tuple[RankEstimate, ...]:
    grid, description = composition.grid, composition.description
    kv_heads = max((layer.num_kv_heads for layer in description.kv_layers), default=0)
    places = (grid.place(rank) for rank in range(grid.size))
    return tuple(
        RankEstimate(
            rank,
            stage,
            tp_rank,
            composition.stage_layers[stage],
            num_heads=description.num_heads // grid.tp_size,
            num_kv_heads=min(kv_heads, max(1, kv_heads // grid.tp_size)),
            weight_bytes=weight_bytes(composition, grid.tp_size, stage),
        )
        for rank, (stage, tp_rank) in enumerate(places)
    )


def _of_fullest_rank(
    composed: Composed, ranks: tuple[RankEstimate, ...], available: Sequence[_AvailableMemory]
) -> tuple[MemoryEstimate, RankEstimate]:
    """Return the estimate for the rank with the least memory to spare, and that rank."""

    def spare(each: tuple[RankEstimate, _AvailableMemory]) -> tuple[float, int]:
        rank, memory = each
        left = inf if memory.cache_bytes is None else memory.cache_bytes
        kv_bytes = rank.kv_bytes or 0
        return left - kv_bytes, -kv_bytes - rank.weight_bytes

    rank, memory = min(zip(ranks, available, strict=True), key=spare)
    limit, limited_by = _cache_limit(composed, memory)
    planned = planned_requests(composed.settings, composed.composition)
    weights, profile = rank.weight_bytes, memory.profile
    return MemoryEstimate(weights, limit, limited_by, planned, profile, ranks=ranks), rank


def _available_memory(composed: Composed, ranks: Sequence[RankEstimate]) -> list[_AvailableMemory]:
    """Return the memory of each rank; on a CPU, those of all replicas share that of the host."""
    device = composed.composition.device
    if device == "cuda":
        return _available_gpu_memory(composed, ranks)
    num_replicas = composed.settings.parallel.data_parallel_size
    free, num_weight_bytes = free_host_bytes(), sum(rank.weight_bytes for rank in ranks)
    free //= num_replicas
    host = _AvailableMemory(
        free - num_weight_bytes,
        cache_bytes(free - num_weight_bytes, len(ranks)),
        f"a part of the memory that is free on this {device} without the weights",
        problem=_weights_problem(device, num_weight_bytes, free)
        if free < num_weight_bytes
        else None,
    )
    return [host] * len(ranks)


def _available_gpu_memory(
    composed: Composed, ranks: Sequence[RankEstimate]
) -> list[_AvailableMemory]:
    """Return the memory of the GPU of each rank, by rank.

    Other machines are expected to have the GPUs of this one.
    """
    settings, composition = composed.settings, composed.composition
    utilization = settings.cache.gpu_memory_utilization
    limited_by = f"gpu_memory_utilization {utilization:g}, and the other uses of the GPU's memory"
    specs = layer_specs(settings, composition, composed.plugins.registries)
    stages, num_gpus = stage_specs(composition, specs), cuda_device_count() or 1

    def of_rank(rank: RankEstimate) -> _AvailableMemory:
        memory = cuda_memory(index=rank.rank % num_gpus)
        if memory is None:
            return _AvailableMemory(None, None, limited_by)
        profile = estimate_profile(
            settings,
            composition,
            rank.weight_bytes,
            stages[rank.stage],
            memory,
            is_last_stage=rank.stage == composition.grid.pp_size - 1,
        )
        problem = _gpu_problem(settings, composition, rank, stages[rank.stage], profile, memory)
        left = max(0, profile.kv_bytes(utilization))
        return _AvailableMemory(profile.kv_bytes(1.0), left, limited_by, profile, problem)

    return [of_rank(rank) for rank in ranks]


def _gpu_problem(
    settings: Settings,
    composition: Composition,
    rank: RankEstimate,
    specs: Sequence[KVCacheSpec],
    profile: MemoryProfile,
    memory: DeviceMemory,
) -> str | None:
    """Return why a rank does not fit its GPU, or None."""
    needed = settings.cache.kv_cache_memory_bytes or least_cache_bytes(specs, settings)
    if memory.free < rank.weight_bytes:
        problem: str | None = _weights_problem(composition.device, rank.weight_bytes, memory.free)
    else:
        is_given = settings.cache.num_kv_blocks is not None
        problem = None if is_given else misfit(profile, settings, needed)
    if problem is None or composition.grid.size == 1:
        return problem
    return f"rank {rank.rank} (pipeline stage {rank.stage}): {problem}"


def _with_cache(rank: RankEstimate, plan: KVPlan) -> RankEstimate:
    return replace(rank, kv_bytes=plan.num_bytes, num_blocks=plan.num_blocks - NULL_BLOCKS)


def _with_plan(memory: MemoryEstimate, plan: KVPlan, max_step_tokens: int) -> MemoryEstimate:
    lengths = sorted({*(n for n in LENGTHS if n < plan.max_model_len), plan.max_model_len})
    return replace(
        memory,
        plan=plan,
        groups=tuple(_estimate_group(plan, group, max_step_tokens) for group in plan.groups),
        fits=tuple(Fit(n, requests_that_fit(plan, n, max_step_tokens)) for n in lengths),
    )


def _weights_problem(device: str, num_bytes: int, free: float) -> str:
    return (
        f"the weights take {num_bytes:,} bytes, and {free:,.0f} are free on this {device}; "
        "use a smaller dtype, a quantization, or shard the layers over several devices "
        "(tensor_parallel_size)"
    )


def _cache_problem(
    composition: Composition,
    plans: Sequence[KVPlan],
    available: Sequence[_AvailableMemory],
    limited_by: str,
) -> str | None:
    """Return why the planned caches do not fit beside the weights, or None.

    On a CPU, those of all ranks together must fit.
    """
    grid, device = composition.grid, composition.device
    sizes = [plans[grid.place(rank)[0]].num_bytes for rank in range(grid.size)]
    wanted = [(size, each.free_bytes) for size, each in zip(sizes, available, strict=True)]
    if device == "cpu":
        wanted = [(sum(sizes), available[0].free_bytes)]
    for num_bytes, free in wanted:
        if free is not None and num_bytes > free:
            return _too_large(plans[0].num_blocks, num_bytes, device, free, limited_by)
    return None


def _too_large(num_blocks: int, num_bytes: int, device: str, free: float, limited_by: str) -> str:
    room = int(free * num_blocks / num_bytes)
    return (
        f"the KV cache of {num_blocks:,} blocks takes {num_bytes:,} bytes, and "
        f"{free:,.0f} are free on this {device} beside the weights, which is enough for "
        f"{room:,} blocks; set a smaller {limited_by}"
    )


def _cache_limit(composed: Composed, available: _AvailableMemory) -> tuple[int | None, str]:
    cache = composed.settings.cache
    if cache.num_kv_blocks is not None:
        return None, "num_kv_blocks"
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    return available.cache_bytes, available.limited_by


def _estimate_group(plan: KVPlan, group: KVGroup, max_step_tokens: int) -> GroupEstimate:
    params = ", ".join(f"{name} {value}" for name, value in group.spec.layer.params)
    return GroupEstimate(
        spec=f"{group.spec.layer.spec} ({params})" if params else group.spec.layer.spec,
        num_layers=len(group.layer_names),
        block_size=group.spec.block_size,
        page_bytes=plan.bytes_a_block,
        padding_bytes=plan.padding_bytes(group),
        max_blocks=group.spec.max_blocks_held(max(1, plan.max_model_len - 1), max_step_tokens),
    )
