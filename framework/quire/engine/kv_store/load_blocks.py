"""The blocks of a load: what the hit that follows from it will need, as far as there is room.

Where a spec needs less than the whole context, most columns of its group name the null block, as in
the table of a request that computed so far:

    hit 2, loaded 4      full attention   [ hit hit | 11 12 13 14 ]
                         sliding window   [  0  hit |  0  0 15 16 ]
"""

from quire.engine.kv_cache.block_pool import NULL_BLOCK
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager, PrefixHit
from quire.engine.request import Request
from quire.interfaces.kv_transfer import CrossGroupBlock


def take_cross_blocks(
    kv: KVCacheManager,
    request: Request,
    hit: PrefixHit | None,
    most: int,
    room: int,
    num_spare: int,
) -> list[CrossGroupBlock]:
    """Take blocks for as many columns behind a hit as fit; none of those that the hit consists of.

    Args:
        kv: Whose blocks.
        request: Whose content.
        hit: What it finds already; it stays in the cache.
        most: How many columns there are to load.
        room: Blocks to take, at most.
        num_spare: Blocks that are left free.
    """
    found = [] if hit is None else hit.block_ids
    first = 0 if hit is None else hit.num_blocks
    for table in found:
        kv.pool.share(table)
    num_blocks = _num_that_fit(kv, first, most, min(room, kv.pool.num_free - num_spare))
    unneeded = _unneeded(kv, first + num_blocks)
    cross_blocks = [
        CrossGroupBlock(name, tuple(NULL_BLOCK if i in u else kv.pool.take(1)[0] for u in unneeded))
        for i, name in enumerate(kv.hashes_beyond(request, first)[:num_blocks], first)
    ]
    kv.give_back(found)
    return cross_blocks


def _unneeded(kv: KVCacheManager, num_blocks: int) -> list[range]:
    """Return, for each KV group, the blocks that a hit of this length does not need."""
    return [spec.freeable_blocks(num_blocks * kv.block_size) for spec in kv.specs]


def _num_needed(kv: KVCacheManager, first: int, stop: int) -> int:
    """Return the blocks that turn a hit of `first` into one of `stop`, in all groups."""
    return sum(
        stop - first - max(0, min(stop, unneeded.stop) - max(first, unneeded.start))
        for unneeded in _unneeded(kv, stop)
    )


def _num_that_fit(kv: KVCacheManager, first: int, most: int, room: int) -> int:
    """Return how many columns fit into so many blocks; found by halves."""
    fits, tried = 0, most  # with windows a longer hit may need less: so all of it is tried first
    while fits < most:
        if _num_needed(kv, first, first + tried) <= room:
            fits = tried
        else:
            most = tried - 1
        tried = (fits + most + 1) // 2
    return fits
