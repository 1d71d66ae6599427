"""Plan the memory of the KV cache, from specs and bytes; no torch, nothing allocated."""

from collections.abc import Sequence

from quire.errors import CapacityError, UnsupportedModelError
from quire.interfaces.kv_cache import KVCacheSpec, KVGroup, KVPlan, KVTensor

NULL_BLOCKS = 1


def plan_kv_cache(
    specs: Sequence[KVCacheSpec], available_bytes: int, max_useful_tokens: int, max_num_seqs: int
) -> KVPlan:
    """Plan a cache for layers that share one spec: one tensor a layer, one block table a request.

    Args:
        specs: One for each layer that keeps something.
        available_bytes: Memory for the cache on one device.
        max_useful_tokens: The longest request.
        max_num_seqs: Requests that run at the same time; more blocks than they can use are not
            allocated.

    Raises:
        CapacityError: Not even one block fits.
        UnsupportedModelError: The layers' specs differ.
    """
    if not specs:
        return KVPlan(NULL_BLOCKS, ())
    spec = specs[0]
    bytes_a_block = sum(each.page_bytes for each in specs)
    affordable = available_bytes // bytes_a_block
    useful = max_num_seqs * spec.max_blocks_held(max_useful_tokens, max_useful_tokens)
    num_blocks = min(affordable, useful + NULL_BLOCKS)
    if num_blocks <= NULL_BLOCKS:
        raise CapacityError(
            f"the KV cache needs at least {(NULL_BLOCKS + 1) * bytes_a_block:,} bytes and gets "
            f"{available_bytes:,}; set kv_cache_memory_bytes, or a smaller block_size"
        )
    return fixed_plan(specs, num_blocks)


def fixed_plan(specs: Sequence[KVCacheSpec], num_blocks: int) -> KVPlan:
    """Plan a cache of exactly `num_blocks` blocks (the null block included).

    Raises:
        UnsupportedModelError: The layers' specs differ.
    """
    if len({spec.key for spec in specs}) > 1:
        mixed = ", ".join(sorted({spec.layer.spec for spec in specs}))
        raise UnsupportedModelError(f"models that mix KV-cache specs ({mixed}) are not served yet")
    names = tuple(spec.layer.name for spec in specs)
    tensors = tuple(KVTensor(num_blocks * s.page_bytes, (s.layer.name,)) for s in specs)
    return KVPlan(num_blocks, (KVGroup(specs[0], names),), tensors)


def longest_request(plan: KVPlan, at_most: int) -> int:
    """Return how many tokens, prompt and answer together, one request can have in the cache.

    The last token of an answer is never computed, so it needs no room.
    """
    usable = plan.num_blocks - NULL_BLOCKS
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        needed = sum(group.spec.blocks_needed(middle - 1) for group in plan.groups)
        low, high = (middle, high) if needed <= usable else (low, middle - 1)
    return low
