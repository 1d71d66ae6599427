"""Reference implementation of the positions that each query reads, independent of blocks."""

from collections.abc import Callable, Sequence

from quire.interfaces.kv_cache import KVCacheSpec

Reader = Callable[[int], range]  # the position of a query -> the positions that it reads


def window_reader(window: int) -> Reader:
    return lambda position: range(max(0, position - window + 1), position + 1)


def chunk_reader(chunk: int) -> Reader:
    return lambda position: range(position - position % chunk, position + 1)


def state_reader(position: int) -> range:
    """Return the reads of a recurrent layer: the state after the previous token."""
    return range(max(0, position - 1), position + 1)


def read_later(reads: Reader, num_computed: int, horizon: int) -> set[int]:
    """Return the computed positions that some later query reads."""
    later = range(num_computed, num_computed + horizon)
    return {seen for query in later for seen in reads(query) if seen < num_computed}


def unread_blocks(reads: Reader, num_computed: int, block_size: int, horizon: int) -> set[int]:
    """Return the full blocks of the computed positions that no later query reads."""
    seen = {position // block_size for position in read_later(reads, num_computed, horizon)}
    return set(range(num_computed // block_size)) - seen


def longest_hit(reads: Reader, is_cached: Sequence[bool], block_size: int, horizon: int) -> int:
    """Return the maximum number of cached blocks with which the next queries can be computed."""
    for length in range(len(is_cached), 0, -1):
        seen = read_later(reads, length * block_size, horizon)
        if all(is_cached[position // block_size] for position in seen):
            return length
    return 0


def most_held(spec: KVCacheSpec, num_tokens: int, steps: Sequence[int]) -> int:
    """Return the maximum number of blocks held at the same time while a request is computed."""
    held, computed = 0, 0
    for step in steps:
        end = min(num_tokens, computed + step)
        held = max(held, spec.blocks_needed(end) - len(spec.freeable_blocks(computed)))
        computed = end
    return held
