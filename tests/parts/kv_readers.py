"""Which positions each query reads, written down once more, without a thought for blocks."""

from collections.abc import Callable, Sequence

from quire.interfaces.kv_cache import KVCacheSpec

Reader = Callable[[int], range]  # the position of a query -> the positions that it sees


def window_reader(window: int) -> Reader:
    return lambda position: range(max(0, position - window + 1), position + 1)


def chunk_reader(chunk: int) -> Reader:
    return lambda position: range(position - position % chunk, position + 1)


def state_reader(position: int) -> range:
    """A recurrent layer reads the state after the token before."""
    return range(max(0, position - 1), position + 1)


def read_later(reads: Reader, num_computed: int, horizon: int) -> set[int]:
    """The computed positions that some later query sees."""
    later = range(num_computed, num_computed + horizon)
    return {seen for query in later for seen in reads(query) if seen < num_computed}


def unread_blocks(reads: Reader, num_computed: int, block_size: int, horizon: int) -> set[int]:
    """The full blocks of the computed positions that no later query sees."""
    seen = {position // block_size for position in read_later(reads, num_computed, horizon)}
    return set(range(num_computed // block_size)) - seen


def longest_hit(reads: Reader, is_cached: Sequence[bool], block_size: int, horizon: int) -> int:
    """The most blocks after which the next queries find all that they see."""
    for length in range(len(is_cached), 0, -1):
        seen = read_later(reads, length * block_size, horizon)
        if all(is_cached[position // block_size] for position in seen):
            return length
    return 0


def most_held(spec: KVCacheSpec, num_tokens: int, steps: Sequence[int]) -> int:
    """Blocks held at the same time while a request is computed in such steps."""
    held, computed = 0, 0
    for step in steps:
        end = min(num_tokens, computed + step)
        held = max(held, spec.blocks_needed(end) - len(spec.freeable_blocks(computed)))
        computed = end
    return held
