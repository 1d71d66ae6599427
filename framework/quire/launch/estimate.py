"""What the memory would be used for, told before anything is loaded.

The same plan as at start-up, made from an estimate of what the weights will leave. It is exact when
the cache's size is given, and as good as the estimate when it is not.
"""

from dataclasses import dataclass, replace

from quire.compose.compose import layer_specs
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

LENGTHS = (1024, 4096, 16384)  # tokens of requests that people ask about


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """What one KV group costs.

    Attributes:
        spec: Name of its layers' KV-cache spec, with its parameters.
        page_bytes: Of one block over all tensors, padding included.
        padding_bytes: Of those, what its layers cannot use.
        max_blocks: Blocks that the longest request holds at the same time.
    """

    spec: str
    num_layers: int
    block_size: int
    page_bytes: int
    padding_bytes: int
    max_blocks: int

    @property
    def bytes_a_token(self) -> int:
        """What a token costs that the group keeps, padding included."""
        return -(-self.page_bytes // self.block_size)


@dataclass(frozen=True, slots=True)
class Fit:
    """How many requests of one length fit at the same time; None: the cache sets no limit."""

    num_tokens: int
    num_requests: int | None


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory of an engine on one device.

    Attributes:
        weight_bytes: Of the model.
        cache_limit: Bytes that the cache may take; None: the plan does not depend on it, or the
            device does not say what is free.
        limited_by: What sets the size of the cache, for people.
        planned_requests: For how many of the longest requests there is room, if memory allows;
            None: the cache takes all that it may.
        profile: What else a GPU's memory is for; None on a CPU, or if the GPU does not say.
        plan: The plan; None if there is a problem, or if nobody can tell before start-up.
        problem: Why an engine would not start, and what would help.
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
    """Plan the memory of an engine that is not running; what it would refuse is refused.

    Raises:
        PluginError: A KV-cache spec cannot be loaded, or the attention backend cannot serve the
            plan.
        SettingsError: A layer's sizes cannot work, or an option of the KV store.
    """
    check_store_options(composed)
    settings, composition = composed.settings, composed.composition
    num_bytes = weight_bytes(composition, settings.parallel.tensor_parallel_size)
    room = _room(composed, num_bytes)
    limit, limited_by = _cache_limit(composed, room)
    memory = MemoryEstimate(
        num_bytes, limit, limited_by, planned_requests(settings, composition), room.profile
    )
    if room.problem is not None:
        return replace(memory, problem=room.problem)
    if limit is None and settings.cache.num_kv_blocks is None and composition.description.kv_layers:
        return memory
    try:
        plan = plan_memory(settings, composition, composed.plugins.registries, limit or 0)
    except CapacityError as error:
        return replace(memory, problem=str(error))
    check_store_options(composed, plan)
    if room.free_bytes is not None and plan.num_bytes > room.free_bytes:
        problem = _cache_problem(plan, composition.device, room.free_bytes, limited_by)
        return replace(memory, problem=problem)
    return _with_plan(memory, plan, settings.scheduler.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class _Room:
    """What a device has for the cache; None: it does not say.

    Attributes:
        free_bytes: What nothing else needs.
        share_bytes: Of those, what the cache may take if its size is not given.
        limited_by: What sets that share, for people.
        profile: Of a GPU.
        problem: Why an engine would not start.
    """

    free_bytes: float | None
    share_bytes: int | None
    limited_by: str
    profile: MemoryProfile | None = None
    problem: str | None = None


def _room(composed: Composed, num_weight_bytes: int) -> _Room:
    device = composed.composition.device
    if device == "cuda":
        return _gpu_room(composed, num_weight_bytes)
    free = free_host_bytes()
    return _Room(
        free - num_weight_bytes,
        cache_bytes(free - num_weight_bytes),
        f"a share of what is free on this {device} without the weights",
        problem=_weights_problem(device, num_weight_bytes, free)
        if free < num_weight_bytes
        else None,
    )


def _gpu_room(composed: Composed, num_weight_bytes: int) -> _Room:
    settings, composition = composed.settings, composed.composition
    share = settings.cache.gpu_memory_utilization
    limited_by = f"gpu_memory_utilization {share:g}, and what else the GPU's memory is for"
    memory = cuda_memory()
    if memory is None:
        return _Room(None, None, limited_by)
    specs = layer_specs(settings, composition, composed.plugins.registries)
    profile = estimate_profile(settings, composition, num_weight_bytes, specs, memory)
    needed = settings.cache.kv_cache_memory_bytes or least_cache_bytes(specs, settings)
    if memory.free < num_weight_bytes:
        problem: str | None = _weights_problem(composition.device, num_weight_bytes, memory.free)
    else:
        is_told = settings.cache.num_kv_blocks is not None
        problem = None if is_told else misfit(profile, settings, needed)
    return _Room(
        profile.kv_bytes(1.0), max(0, profile.kv_bytes(share)), limited_by, profile, problem
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
        "a smaller dtype, a quantization, or sharing the layers (tensor_parallel_size), would "
        "take less"
    )


def _cache_problem(plan: KVPlan, device: str, free: float, limited_by: str) -> str:
    num_blocks = int(free * plan.num_blocks / plan.num_bytes)
    return (
        f"the KV cache of {plan.num_blocks:,} blocks takes {plan.num_bytes:,} bytes, and "
        f"{free:,.0f} are free on this {device} beside the weights, which is room for "
        f"{num_blocks:,} blocks; set a smaller {limited_by}"
    )


def _cache_limit(composed: Composed, room: _Room) -> tuple[int | None, str]:
    cache = composed.settings.cache
    if cache.num_kv_blocks is not None:
        return None, "num_kv_blocks"
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    return room.share_bytes, room.limited_by


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
