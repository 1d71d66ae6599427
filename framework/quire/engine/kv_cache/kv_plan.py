"""Plan the memory of the KV cache, from specs and bytes; no torch, nothing allocated.

    num_blocks = free bytes // bytes of one block id over all tensors

where that is `group_size * page bytes` if groups share tensors, and the sum of the layers' pages if
they do not. Pipeline stages share block ids, so all have as many as the smallest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quire.engine.kv_cache.kv_groups import KVGrouping, group_layers
from quire.errors import CapacityError
from quire.interfaces.kv_cache import KVCacheSpec, KVPlan, KVTensor

NULL_BLOCKS = 1


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One pipeline stage.

    Attributes:
        specs: One for each of its layers that keeps something.
        available_bytes: Memory for the cache on each of its devices.
    """

    specs: Sequence[KVCacheSpec]
    available_bytes: int


def plan_kv_cache(
    specs: Sequence[KVCacheSpec],
    available_bytes: int,
    max_useful_tokens: int,
    max_num_seqs: int | None,
    max_step_tokens: int | None = None,
) -> KVPlan:
    """Plan the cache of a model that lies on one device, or on several that share each layer.

    Args:
        specs: One for each layer that keeps something.
        available_bytes: Memory for the cache on one device.
        max_useful_tokens: The longest request.
        max_num_seqs: Requests to have room for, of the longest; more blocks than they can use are
            not allocated. None: all that is available, for prefixes that nobody uses at the moment.
        max_step_tokens: Tokens of one request in a step, at most; None: all of them.

    Raises:
        CapacityError: Not even one token of one request fits.
    """
    stage = StageMemory(specs, available_bytes)
    return plan_stages([stage], max_useful_tokens, max_num_seqs, max_step_tokens)[0]


def plan_stages(
    stages: Sequence[StageMemory],
    max_useful_tokens: int,
    max_num_seqs: int | None,
    max_step_tokens: int | None = None,
) -> list[KVPlan]:
    """Plan the cache of a model whose layers lie on several pipeline stages, in order.

    Groups are made once over all stages, and each stage keeps its share of each, so that one block
    table serves them all. The other arguments, and what is raised, are as for `plan_kv_cache`.
    """
    whole = group_layers([spec for stage in stages for spec in stage.specs])
    if not whole.groups:
        return [KVPlan(NULL_BLOCKS, ()) for _ in stages]
    parts = [_part(whole, stage) for stage in stages]
    step = max_useful_tokens if max_step_tokens is None else max_step_tokens
    limits = [*_affordable(whole, parts, stages)]
    if max_num_seqs is not None:
        limits.append(max_num_seqs * _blocks_held(whole, max_useful_tokens, step) + NULL_BLOCKS)
    num_blocks = min(limits)
    return [_plan(part, num_blocks) for part in parts]


def fixed_plan(specs: Sequence[KVCacheSpec], num_blocks: int) -> KVPlan:
    """Plan a cache of exactly `num_blocks` blocks, the null block included.

    A model that keeps nothing needs the null block alone.
    """
    whole = group_layers(specs)
    return _plan(whole, num_blocks if whole.groups else NULL_BLOCKS)


def longest_request(plan: KVPlan, at_most: int, max_step_tokens: int | None = None) -> int:
    """Return how many tokens, prompt and answer together, one request can have in the cache.

    The last token of an answer is never computed, so it needs no room.

    Args:
        plan: The cache.
        at_most: The answer where everything fits.
        max_step_tokens: Tokens of the request in a step, at most: what a window has left behind is
            free again only between steps. None: all of them.
    """
    usable = plan.num_blocks - NULL_BLOCKS
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        needed = blocks_held(plan, middle - 1, max_step_tokens)
        low, high = (middle, high) if needed <= usable else (low, middle - 1)
    return low


def blocks_held(plan: KVPlan, num_tokens: int, max_step_tokens: int | None = None) -> int:
    """Return how many blocks one request holds at the same time, at most, over all groups."""
    step = num_tokens if max_step_tokens is None else max_step_tokens
    return sum(group.spec.max_blocks_held(num_tokens, step) for group in plan.groups)


def requests_that_fit(plan: KVPlan, num_tokens: int, max_step_tokens: int) -> int | None:
    """Return how many requests of so many tokens the cache holds at the same time.

    One of them is in its largest step, and the others decode: a step's tokens are shared.

    Returns:
        None if requests hold nothing, so that any number fits.
    """
    computed = max(1, num_tokens - 1)  # the last token of an answer never is
    usable = plan.num_blocks - NULL_BLOCKS
    largest = blocks_held(plan, computed, max_step_tokens)
    if not largest:
        return None
    if usable < largest:
        return 0
    return 1 + (usable - largest) // blocks_held(plan, computed, 1)


def _part(whole: KVGrouping, stage: StageMemory) -> KVGrouping:
    return whole.on_stage(frozenset(spec.layer.name for spec in stage.specs))


def _affordable(
    whole: KVGrouping, parts: Sequence[KVGrouping], stages: Sequence[StageMemory]
) -> list[int]:
    """Return the blocks that each stage has room for; a stage that keeps nothing has no say."""
    smallest = NULL_BLOCKS + _blocks_held(whole, 1, 1)
    affordable = []
    for part, stage in zip(parts, stages, strict=True):
        bytes_a_block = part.bytes_a_block
        if not bytes_a_block:
            continue
        affordable.append(stage.available_bytes // bytes_a_block)
        if affordable[-1] < smallest:
            raise CapacityError(
                f"the KV cache needs at least {smallest * bytes_a_block:,} bytes and gets "
                f"{stage.available_bytes:,}; set kv_cache_memory_bytes, or a smaller block_size"
            )
    return affordable


def _blocks_held(grouping: KVGrouping, num_tokens: int, max_step_tokens: int) -> int:
    return sum(spec.max_blocks_held(num_tokens, max_step_tokens) for spec in grouping.leaders)


def _plan(grouping: KVGrouping, num_blocks: int) -> KVPlan:
    tensors = tuple(KVTensor(num_blocks * size, names) for size, names in grouping.tensors)
    return KVPlan(num_blocks, grouping.as_kv_groups(), tensors)
