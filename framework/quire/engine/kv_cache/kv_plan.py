"""Memory plan of the KV cache, from specs and available bytes; no torch, nothing allocated.

    num_blocks = free bytes // bytes of one block id over all tensors

The bytes of one block id are `group_size * page bytes` if groups share tensors, and the sum of the
layers' page sizes if not. Pipeline stages share block ids, so all have as many as the smallest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.kv_groups import KVGrouping, group_layers
from quire.errors import CapacityError
from quire.interfaces.kv_cache import KVCacheSpec, KVPlan, KVTensor

NULL_BLOCKS = 1


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Layers and memory of one pipeline stage.

    Attributes:
        specs: Specs of its layers with a KV cache.
        available_bytes: Number of bytes for the cache on each of its devices.
    """

    specs: Sequence[KVCacheSpec]
    available_bytes: int


def plan_stages(
    stages: Sequence[StageMemory],
    max_useful_tokens: int,
    max_num_seqs: int | None,
    max_step_tokens: int | None = None,
) -> list[KVPlan]:
    """Plan the cache of a model's pipeline stages, in order.

    Groups are made once over all stages, and each stage has its part of each group, so that one
    block table serves them all.

    Args:
        stages: Layers and memory of each stage.
        max_useful_tokens: Number of tokens of the longest request.
        max_num_seqs: Number of requests of that length to have blocks for; more are not allocated.
            None: use all available memory, for cached prefixes.
        max_step_tokens: Maximum number of tokens of one request in a step; None: all of them.

    Raises:
        CapacityError: Not even one token of one request fits.
    """
    whole = group_layers([spec for stage in stages for spec in stage.specs])
    if not whole.groups:
        return [KVPlan(NULL_BLOCKS, ()) for _ in stages]
    parts = [_part(whole, stage.specs) for stage in stages]
    step = max_useful_tokens if max_step_tokens is None else max_step_tokens
    limits = [*_affordable(whole, parts, stages)]
    if max_num_seqs is not None:
        limits.append(max_num_seqs * _blocks_held(whole, max_useful_tokens, step) + NULL_BLOCKS)
    num_blocks = min(limits)
    return [_plan(part, num_blocks) for part in parts]


def fixed_plan(specs: Sequence[KVCacheSpec], num_blocks: int) -> KVPlan:
    """Plan a cache of exactly `num_blocks` blocks, the null block included.

    A model without KV cache gets the null block alone.
    """
    return fixed_stages([specs], num_blocks)[0]


def fixed_stages(stages: Sequence[Sequence[KVCacheSpec]], num_blocks: int) -> list[KVPlan]:
    """Plan a cache of exactly `num_blocks` blocks on each pipeline stage.

    Args:
        stages: Specs of the layers with a KV cache of each stage.
        num_blocks: Number of blocks, the null block included.
    """
    whole = group_layers([spec for specs in stages for spec in specs])
    wanted = num_blocks if whole.groups else NULL_BLOCKS
    return [_plan(_part(whole, specs), wanted) for specs in stages]


def longest_request(plan: KVPlan, max_tokens: int, max_step_tokens: int | None = None) -> int:
    """Return the maximum number of tokens, prompt and completion together, of one request.

    The last generated token is never computed, so it needs no room.

    Args:
        plan: Memory plan of the cache.
        max_tokens: Upper limit of the result.
        max_step_tokens: Maximum number of tokens of the request in a step: blocks that a window has
            passed are freed only between steps. None: all of them.
    """
    usable = plan.num_blocks - NULL_BLOCKS
    low, high = 0, max_tokens
    while low < high:
        middle = (low + high + 1) // 2
        needed = blocks_held(plan, middle - 1, max_step_tokens)
        low, high = (middle, high) if needed <= usable else (low, middle - 1)
    return low


def blocks_held(plan: KVPlan, num_tokens: int, max_step_tokens: int | None = None) -> int:
    """Return the maximum number of blocks that one request holds at the same time, all groups."""
    step = num_tokens if max_step_tokens is None else max_step_tokens
    return sum(group.spec.max_blocks_held(num_tokens, step) for group in plan.groups)


def requests_that_fit(plan: KVPlan, num_tokens: int, max_step_tokens: int) -> int | None:
    """Return the number of requests of `num_tokens` tokens that the cache holds at the same time.

    One of them computes a largest step, and the others decode: they share the step's token budget.

    Returns:
        None if requests hold no blocks, so that any number fits.
    """
    computed = max(1, num_tokens - 1)  # the last generated token is never computed
    usable = plan.num_blocks - NULL_BLOCKS
    largest = blocks_held(plan, computed, max_step_tokens)
    if not largest:
        return None
    if usable < largest:
        return 0
    return 1 + (usable - largest) // blocks_held(plan, computed, 1)


def _part(whole: KVGrouping, specs: Sequence[KVCacheSpec]) -> KVGrouping:
    return whole.on_stage(frozenset(spec.layer.name for spec in specs))


def _affordable(
    whole: KVGrouping, parts: Sequence[KVGrouping], stages: Sequence[StageMemory]
) -> list[int]:
    """Return the number of blocks that fit each stage, skipping stages without KV cache."""
    smallest = NULL_BLOCKS + _blocks_held(whole, 1, 1)
    affordable = []
    for index, (part, stage) in enumerate(zip(parts, stages, strict=True)):
        bytes_a_block = part.bytes_a_block
        where = f" of pipeline stage {index}" if len(stages) > 1 else ""
        if not bytes_a_block:
            continue
        affordable.append(stage.available_bytes // bytes_a_block)
        if affordable[-1] < smallest:
            raise CapacityError(
                f"the KV cache{where} needs at least {smallest * bytes_a_block:,} bytes and gets "
                f"{stage.available_bytes:,}; set kv_cache_memory_bytes, or a smaller block_size"
            )
    return affordable


def _blocks_held(grouping: KVGrouping, num_tokens: int, max_step_tokens: int) -> int:
    return sum(spec.max_blocks_held(num_tokens, max_step_tokens) for spec in grouping.leaders)


def _plan(grouping: KVGrouping, num_blocks: int) -> KVPlan:
    tensors = tuple(KVTensor(num_blocks * size, names) for size, names in grouping.tensors)
    return KVPlan(num_blocks, grouping.as_kv_groups(), tensors)
