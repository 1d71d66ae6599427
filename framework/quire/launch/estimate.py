"""What the memory would be used for, told before anything is loaded.

The same plan as at start-up, made from an estimate of what the weights will leave. It is exact when
the cache's size is given, and as good as the estimate when it is not.
"""

from dataclasses import dataclass

from quire.engine.kv_plan import requests_that_fit
from quire.errors import CapacityError
from quire.free_memory import cache_bytes, free_bytes
from quire.interfaces.kv_cache import DTYPE_BYTES, KVGroup, KVPlan
from quire.launch.composing import Composed
from quire.launch.memory import plan_memory

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
        plan: The plan; None if there is a problem, or if nobody can tell before start-up.
        problem: Why an engine would not start, and what would help.
    """

    weight_bytes: int
    cache_limit: int | None
    limited_by: str
    plan: KVPlan | None = None
    groups: tuple[GroupEstimate, ...] = ()
    fits: tuple[Fit, ...] = ()
    problem: str | None = None


def estimate_memory(composed: Composed) -> MemoryEstimate:
    """Plan the memory of an engine that is not running.

    Raises:
        PluginError: A KV-cache spec cannot be loaded, or the attention backend cannot serve the
            plan.
        SettingsError: A layer's sizes cannot work.
    """
    settings, composition = composed.settings, composed.composition
    weight_bytes = _weight_bytes(composed)
    free = free_bytes(composition.device)
    if free is not None and free < weight_bytes:
        problem = _weights_problem(composition.device, weight_bytes, free)
        return MemoryEstimate(weight_bytes, 0, "the weights", problem=problem)
    limit, limited_by = _cache_limit(composed, weight_bytes, free)
    if limit is None and settings.cache.num_kv_blocks is None and composition.description.kv_layers:
        return MemoryEstimate(weight_bytes, limit, limited_by)
    try:
        plan = plan_memory(settings, composition, composed.plugins.registries, limit or 0)
    except CapacityError as error:
        return MemoryEstimate(weight_bytes, limit, limited_by, problem=str(error))
    step = settings.scheduler.max_num_batched_tokens
    lengths = sorted({*(n for n in LENGTHS if n < plan.max_model_len), plan.max_model_len})
    return MemoryEstimate(
        weight_bytes,
        limit,
        limited_by,
        plan,
        tuple(_estimate_group(plan, group, step) for group in plan.groups),
        tuple(Fit(n, requests_that_fit(plan, n, step)) for n in lengths),
    )


def _weight_bytes(composed: Composed) -> int:
    """Return what the worker will say of the weights on one device."""
    num_params = composed.composition.description.num_params
    local = num_params // composed.settings.parallel.tensor_parallel_size
    return local * DTYPE_BYTES[composed.composition.dtype]


def _weights_problem(device: str, weight_bytes: int, free: float) -> str:
    return (
        f"the weights take {weight_bytes:,} bytes, and {free:,.0f} are free on this {device}; "
        "a smaller dtype, or sharing the layers (tensor_parallel_size), would take less"
    )


def _cache_limit(
    composed: Composed, weight_bytes: int, free: float | None
) -> tuple[int | None, str]:
    cache, device = composed.settings.cache, composed.composition.device
    if cache.num_kv_blocks is not None:
        return None, "num_kv_blocks"
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    limit = None if free is None else cache_bytes(device, free - weight_bytes)
    return limit, f"a share of what is free on this {device} without the weights"


def _estimate_group(plan: KVPlan, group: KVGroup, max_step_tokens: int) -> GroupEstimate:
    page_bytes = sum(plan.page_bytes(tensor) for tensor in plan.tensors)
    used = sum(spec.page_bytes for spec in group.layer_specs)
    params = ", ".join(f"{name} {value}" for name, value in group.spec.layer.params)
    return GroupEstimate(
        spec=f"{group.spec.layer.spec} ({params})" if params else group.spec.layer.spec,
        num_layers=len(group.layer_names),
        block_size=group.spec.block_size,
        page_bytes=page_bytes,
        padding_bytes=page_bytes - used,
        max_blocks=group.spec.max_blocks_held(max(1, plan.max_model_len - 1), max_step_tokens),
    )
