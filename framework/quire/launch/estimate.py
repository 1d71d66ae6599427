"""Memory estimate of an engine that is not running, for `quire explain`.

It makes the same plan as start-up, from an estimate of the memory that the weights leave free. The
plan is exact if the size of the cache is given, and as good as the estimate otherwise.
"""

from dataclasses import dataclass, replace

from quire.compose.layer_specs import layer_specs
from quire.compose.memory_profile import MemoryProfile, least_cache_bytes, misfit
from quire.compose.weight_bytes import weight_bytes
from quire.engine.kv_cache.kv_plan import requests_that_fit
from quire.errors import CapacityError
from quire.interfaces.kv_cache import KVGroup, KVPlan
from quire.launch.composing import Composed
from quire.launch.kv_memory import plan_memory, planned_requests
from quire.launch.kv_store_setup import check_store_options
from quire.launch.profile_estimate import estimate_profile
from quire.machine.free_memory import cache_bytes, free_host_bytes
from quire.machine.nvml import cuda_memory

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
class MemoryEstimate:
    """The memory of an engine on one device.

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
    num_bytes = weight_bytes(composition, settings.parallel.tensor_parallel_size)
    available = _available_memory(composed, num_bytes)
    limit, limited_by = _cache_limit(composed, available)
    memory = MemoryEstimate(
        num_bytes, limit, limited_by, planned_requests(settings, composition), available.profile
    )
    if available.problem is not None:
        return replace(memory, problem=available.problem)
    if limit is None and settings.cache.num_kv_blocks is None and composition.description.kv_layers:
        return memory
    try:
        (plan,) = plan_memory(settings, composition, composed.plugins.registries, [limit or 0])
    except CapacityError as error:
        return replace(memory, problem=str(error))
    check_store_options(composed, plan)
    if available.free_bytes is not None and plan.num_bytes > available.free_bytes:
        problem = _cache_problem(plan, composition.device, available.free_bytes, limited_by)
        return replace(memory, problem=problem)
    return _with_plan(memory, plan, settings.scheduler.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class _AvailableMemory:
    """Memory of a device for the cache; None where it is unknown.

    Attributes:
        free_bytes: Bytes that nothing else needs.
        cache_bytes: Bytes that the cache may take if its size is not given.
        limited_by: Description of what limits these, for people.
        profile: Memory use of a GPU without the cache.
        problem: Reason why an engine would not start.
    """

    free_bytes: float | None
    cache_bytes: int | None
    limited_by: str
    profile: MemoryProfile | None = None
    problem: str | None = None


def _available_memory(composed: Composed, num_weight_bytes: int) -> _AvailableMemory:
    device = composed.composition.device
    if device == "cuda":
        return _available_gpu_memory(composed, num_weight_bytes)
    free = free_host_bytes()
    return _AvailableMemory(
        free - num_weight_bytes,
        cache_bytes(free - num_weight_bytes),
        f"a part of the memory that is free on this {device} without the weights",
        problem=_weights_problem(device, num_weight_bytes, free)
        if free < num_weight_bytes
        else None,
    )


def _available_gpu_memory(composed: Composed, num_weight_bytes: int) -> _AvailableMemory:
    settings, composition = composed.settings, composed.composition
    utilization = settings.cache.gpu_memory_utilization
    limited_by = f"gpu_memory_utilization {utilization:g}, and the other uses of the GPU's memory"
    memory = cuda_memory()
    if memory is None:
        return _AvailableMemory(None, None, limited_by)
    specs = layer_specs(settings, composition, composed.plugins.registries)
    profile = estimate_profile(settings, composition, num_weight_bytes, specs, memory)
    needed = settings.cache.kv_cache_memory_bytes or least_cache_bytes(specs, settings)
    if memory.free < num_weight_bytes:
        problem: str | None = _weights_problem(composition.device, num_weight_bytes, memory.free)
    else:
        is_given = settings.cache.num_kv_blocks is not None
        problem = None if is_given else misfit(profile, settings, needed)
    return _AvailableMemory(
        profile.kv_bytes(1.0), max(0, profile.kv_bytes(utilization)), limited_by, profile, problem
    )


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


def _cache_problem(plan: KVPlan, device: str, free: float, limited_by: str) -> str:
    num_blocks = int(free * plan.num_blocks / plan.num_bytes)
    return (
        f"the KV cache of {plan.num_blocks:,} blocks takes {plan.num_bytes:,} bytes, and "
        f"{free:,.0f} are free on this {device} beside the weights, which is enough for "
        f"{num_blocks:,} blocks; set a smaller {limited_by}"
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
